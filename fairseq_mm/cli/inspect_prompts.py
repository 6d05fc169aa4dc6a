"""Runs ``fairseq-mm inspect`` for stories of prompts: gates, attention and likelihood of words."""

import argparse
from typing import Any, Optional

from fairseq_mm.analysis.story_inspection import inspect_story
from fairseq_mm.cli.inspect import Inspection, Part, check_line, read_told_line
from fairseq_mm.data.records import open_split
from fairseq_mm.data.story_text import tokenize_story_text
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.report.inspection import make_story_sections

# words of a prompt (None without one) and of a story
Text = tuple[Optional[list[str]], list[str]]


def inspect(args: argparse.Namespace, checkpoint: Checkpoint) -> Inspection:
    """Compute gates, attention and likelihood of a story or of a language model's text."""
    models = checkpoint.build(args.device)
    has_prompt = not models.are_language_models
    lines = args.lines or [0]
    if len(lines) > 1:
        raise UserError(f"--lines: one story is inspected, but {len(lines)} lines are given.")
    if args.data:
        split = open_split(args.data, args.split or "valid")
        stories = split.tokens("wp_target")
        check_line(lines[0], len(stories), split.path)
        story = stories[lines[0]]
        prompt = split.tokens("wp_source")[lines[0]] if has_prompt else None
    else:
        needed = ", with `tokens` and `prompt`."
        prompt, story = read_told_line(args.source, lines[0], _parse_told, needed)
    inspected = inspect_story(models, prompt if has_prompt else None, story, num_words=args.words)
    of_part = "" if inspected.gates is None else ", attention of its trained part"
    number = len(inspected.words)
    subtitle = f"{models.architectures[0]}, {models.files[0]}{of_part}; {number} words"
    # The last token of the prompt is </s>; the text of a language model has no prompt.
    title = " ".join(inspected.prompt[:-1]) or " ".join(inspected.words[:12])
    records = inspected.records(layers=args.layers)
    part = Part(records, lambda: make_story_sections(inspected))
    return Inspection(title, subtitle, iter([part]))


def _parse_told(record: Any) -> Text:
    story, prompt = _split_words(record["tokens"]), record.get("prompt_tokens")
    if prompt is None:
        return tokenize_story_text(record.get("prompt", "")), story
    return _split_words(prompt), story


def _split_words(value: Any) -> list[str]:
    # str.split and str.join raise a TypeError for other types
    return (" ".join(value) if isinstance(value, list) else value).split()
