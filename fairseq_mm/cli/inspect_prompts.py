"""Runs ``fairseq-mm inspect`` for stories that have a prompt, and for texts of language models."""

import argparse
from collections.abc import Sequence
from typing import Any, Optional

from fairseq_mm.analysis.story_inspection import inspect_story
from fairseq_mm.cli.inspect_output import Inspection, Part, check_line, read_told_lines
from fairseq_mm.data.split_text import TARGET, read_side, read_story_split, side_path
from fairseq_mm.data.story_text import check_encodable, tokenize_story_text
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint, LoadedModels, build_models
from fairseq_mm.report.inspection import make_story_sections

# words of a prompt (None without one) and of a story
Text = tuple[Optional[list[str]], list[str]]


def inspect(args: argparse.Namespace, checkpoints: Sequence[Checkpoint]) -> Inspection:
    """Compute gates, attention and likelihood of a story or of a language model's text."""
    models = build_models(checkpoints, args.device)
    prompt, story = _read_text(args, models)
    if models.are_language_models:
        prompt = None
    elif not prompt:
        raise UserError("the prompt has no word.")
    if not story:
        raise UserError("the story has no word.")
    check_encodable(" ".join([*(prompt or ()), *story]), "prompt and story")
    inspected = inspect_story(models, prompt, story, num_words=args.words)
    of_part = "" if inspected.gates is None else ", attention of its trained part"
    number = len(inspected.words)
    subtitle = f"{models.architectures[0]}, {models.files[0]}{of_part}; {number} words"
    # The last token of the prompt is </s>; the text of a language model has no prompt.
    title = " ".join(inspected.prompt[:-1]) or " ".join(inspected.words[:12])
    records = inspected.records(layers=args.layers)
    part_of_page = Part(records, lambda: make_story_sections(inspected))
    return Inspection(title, subtitle, iter([part_of_page]))


def _read_text(args: argparse.Namespace, models: LoadedModels) -> Text:
    lines = args.lines or [0]
    if len(lines) > 1:
        raise UserError(f"--lines: one story is inspected, but {len(lines)} lines are given.")
    if not args.data:
        needed = ", with `tokens` and `prompt`."
        ((_, text),) = read_told_lines(args.source, lines, _parse_told, needed)
        return text
    split, (line,) = args.split or "valid", lines
    if models.are_language_models:
        texts = read_side(args.data, split, TARGET)
        check_line(line, len(texts), side_path(args.data, split, TARGET))
        return None, texts[line]
    stories = read_story_split(args.data, split)
    check_line(line, len(stories.stories), side_path(args.data, split, TARGET))
    return stories.prompts[line], stories.stories[line]


def _parse_told(record: Any) -> Text:
    story, prompt = _split_words(record["tokens"]), record.get("prompt_tokens")
    if prompt is None:
        return tokenize_story_text(record.get("prompt", "")), story
    return _split_words(prompt), story


def _split_words(value: Any) -> list[str]:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return value
    return str.split(value)  # str.split raises a TypeError for other types
