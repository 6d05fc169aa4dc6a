"""``fairseq-mm score --preset wp``: stories have no references that they should resemble."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Optional

from fairseq_mm.cli.score_inputs import JoinedTexts
from fairseq_mm.cli.score_output import compare, describe, write_file
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.copying import CopiedRun, CopiedRuns
from fairseq_mm.metrics.result_card import allows_unk
from fairseq_mm.metrics.score_rows import Row, TokenizedItems
from fairseq_mm.metrics.text_scores import score_texts

METRICS = ("diversity", "copying")


class _LineNumbers(Sequence[str]):
    """Ids of fairseq-generate's lines: their numbers."""

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, number):  # type: ignore[no-untyped-def]
        return str(number)


def check_arguments(args: argparse.Namespace, metrics: Sequence[str]) -> None:
    """
    Raises:
        UserError: if something is asked that needs references.
    """
    for name in metrics:
        if name not in METRICS:
            raise UserError(
                f"--metrics: of stories without references must be of {', '.join(METRICS)}, but "
                f"has {name!r}."
            )
    for option in ("references", "reference_scores"):
        if getattr(args, option) is not None:
            raise UserError(
                f"--{option.replace('_', '-')}: the preset wp measures stories without references."
            )


def score_stories(
    args: argparse.Namespace,
    metrics: Sequence[str],
    result: dict[str, object],
    *,
    tokenizer: str,
    tokenize: Callable[[str], list[str]],
    training: Optional[str],
    samples: int,
) -> list[Row]:
    """Rows of the stories' metrics; adds counts and the comparison to ``result``.

    Args:
        args: of ``fairseq-mm score``.
        metrics: out of :data:`METRICS`.
        result: of the command.
        tokenizer: name of ``tokenize``.
        tokenize: story -> words.
        training: training stories, one a line; None where there are none.
        samples: of the bootstrap for the comparison.

    Raises:
        UserError: if a file is in no known layout, or the systems have no story in common.
    """
    systems = [_read(path) for path in (args.hypotheses, args.compare) if path]
    ids = [key for key in systems[0].texts if all(key in system.texts for system in systems)]
    if not ids:
        raise UserError(f"{args.hypotheses} and {args.compare}: have no id in common.")
    stories = [[tokenize(system.texts[key]) for key in ids] for system in systems]
    training_words = None
    runs: list[Optional[list[CopiedRun]]] = [None] * len(systems)
    if "copying" in metrics and training is not None:
        found, training_words = _copied_runs(
            [words for texts in stories for words in texts], training
        )
        runs = [found[i : i + len(ids)] for i in range(0, len(found), len(ids))]
    scored = []
    for system, texts, copied in zip(systems, stories, runs):
        items = TokenizedItems(
            texts,
            [],
            tokenizer,
            copied_runs=copied,
            training_words=training_words,
            allows_unk=allows_unk(system.path),
        )
        scored.append(score_texts(items, metrics))
    for row in scored[0]:
        row.expected = len(systems[0].texts)
    result["texts"] = [describe(system) for system in systems]
    if len(systems) == 2:
        result["comparison"] = compare(*scored, samples=samples, seed=args.seed)
    if args.per_item:
        write_file(args.per_item, _per_item_lines(ids, systems[0], stories[0], runs[0]))
    return scored[0]


def _read(path: str) -> JoinedTexts:
    from fairseq_mm.data.story_file import read_stories
    from fairseq_mm.metrics.hypotheses import read_hypotheses

    try:
        with open(path, encoding="utf-8") as file:
            first = next((line for line in file if line.strip()), "")
            num_lines = 1 + sum(1 for _ in file)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text: {error}") from None
    if first.lstrip().startswith("{") and '"hypothesis"' not in first:
        texts = {story.id: story.tokens for story in read_stories(path)}
        return JoinedTexts(path, "stories", texts, [], [], [], 0)
    numbers = [str(i) for i in range(num_lines)]
    found = read_hypotheses(path, item_ids=numbers, visual_ids=_LineNumbers())
    return JoinedTexts(path, found.layout, found.texts, [], found.repeated, [], found.unused)


def _copied_runs(stories: list[list[str]], training: str) -> tuple[list[CopiedRun], int]:
    """A run for each story, and the number of words of the training text."""
    from tqdm import tqdm

    size = os.path.getsize(training) if os.path.isfile(training) else None
    # most characters are one byte
    with tqdm(
        total=size, unit="B", unit_scale=True, desc="training text", leave=False, disable=None
    ) as bar:
        search = CopiedRuns(stories)
        search.read_file(training, progress=bar.update)
    if not search.words_read:
        raise UserError(f"{training}: must have training stories, but is empty.")
    return search.results(), search.words_read


def _per_item_lines(
    ids: list[str],
    system: JoinedTexts,
    words: list[list[str]],
    runs: Optional[list[CopiedRun]],
) -> str:
    """One JSON object a story, ordered by id: what it copies, and from where."""
    lines = []
    numeric = all(key.isdecimal() for key in ids)
    order = sorted(range(len(ids)), key=lambda i: (int(ids[i]) if numeric else 0, ids[i]))
    for i in order:
        entry: dict[str, object] = {"id": ids[i], "hypothesis": system.texts[ids[i]]}
        entry["length"] = len(words[i])
        if runs is not None:
            run = runs[i]
            entry["copied_words"] = run.length
            entry["copied"] = " ".join(run.words)
            entry["copied_from"] = f"{Path(run.file).name}:{run.line}" if run.file else None
        lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
    return "".join(lines)
