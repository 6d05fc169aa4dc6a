"""Tests for ``fairseq-mm rank`` whether stories fit their own prompt or images best."""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from fairseq_mm.cli.split_texts import TEXTS, StoryTexts, build_card, name_output, sample_lines
from fairseq_mm.data.elapsed_time import elapsed_time
from fairseq_mm.data.folder_lock import only_writer
from fairseq_mm.data.output_file import write_file
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.metrics import condition_ranking
from fairseq_mm.metrics.condition_ranking import Columns
from fairseq_mm.metrics.result_card import file_hash
from fairseq_mm.metrics.score_rows import signature
from fairseq_mm.retrieval.score_file import PairScores

# figure -> title, factor, decimals and unit in the table
ROWS = {
    "accuracy": ("accuracy", 100, 1, " %"),
    "first": ("ranked first", 100, 1, " %"),
    "mean_rank": ("mean rank", 1, 2, ""),
}


def rank_stories(args: argparse.Namespace, checkpoints: Sequence[Checkpoint]) -> None:
    """Rank each story's own prompt or images among others, by the likelihood of the story.

    ``checkpoints`` are one model, or an ensemble.
    """
    started = time.time()
    texts: StoryTexts = TEXTS[checkpoints[0].kind](args, checkpoints)
    lines = sample_lines(len(texts.texts), args.stories, args.seed)
    columns = condition_ranking.condition_columns(texts.names[line] for line in lines)
    if len(columns.texts) < args.candidates:
        raise UserError(
            f"{args.data}: {len(lines)} stories of {args.split} have {len(columns.texts)} "
            f"different {texts.noun}, but --candidates {args.candidates} needs as many: give more "
            "--stories, or fewer --candidates."
        )
    with tqdm(total=args.draws, unit="draw", leave=False, disable=None) as progress:
        distractors = condition_ranking.draw_distractors(
            columns.true,
            len(columns.texts),
            draws=args.draws,
            distractors=args.candidates - 1,
            seed=args.seed,
            on_draw=progress.update,
        )
    settings = {**_settings(texts), "split": args.split, "precision": args.precision}
    output = args.output or name_output(texts.models.files, args.split)
    with only_writer(output):
        # The file may have likelihoods of an earlier run, which are not computed again.
        file = PairScores(output, settings, condition=texts.condition_name)
        pairs = condition_ranking.needed_pairs(columns.true, distractors)
        scores = _score(file, pairs, texts, lines, columns)
        with elapsed_time("confidence intervals"):
            ranking = texts.rank(scores, columns.true, distractors, seed=args.seed)
        sizes = {"stories": len(lines), texts.noun: len(columns.texts)}
        report = {
            **{
                name: value._asdict() if isinstance(value, condition_ranking.Figure) else value
                for name, value in ranking._asdict().items()
            },
            **sizes,
            "stories_available": len(texts.texts),
            "candidates": args.candidates,
            "draws": args.draws,
            "seed": args.seed,
            "signature": signature(
                f"{texts.noun[:-1]}_ranking",
                split=args.split,
                **sizes,
                candidates=args.candidates,
                draws=args.draws,
                seed=args.seed,
                words=texts.num_words,
                models=len(texts.models.files),
                prec=args.precision,
                ties=texts.ties,
            ),
            "scores_of": settings,
        }
        _print(report, texts.noun)
        names = ("stories", "draws", "candidates", "words")
        report["card"] = build_card(args, texts.files, names, texts.device)
        write_file(os.path.join(output, "ranking.json"), json.dumps(report, indent=2) + "\n")
        entries = _entries(texts, lines, scores, columns.true, distractors)
        text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        write_file(os.path.join(output, "stories.jsonl"), text)
    seconds = time.time() - started
    print(
        f"{output}: wrote ranking.json, stories.jsonl, likelihoods.jsonl "
        f"({len(file.scores):,} pairs) in {seconds:.0f} s",
        file=sys.stderr,
    )


def _settings(texts: StoryTexts) -> dict[str, Any]:
    """Return digests of everything that likelihoods depend on: checkpoints, texts and features."""
    hashes: dict[str, Any] = {"words": texts.num_words}
    for role, path in texts.files.items():
        if role != "split":  # the same texts may be in a file of another form
            # Files above 4 GiB are not hashed; their size is used instead.
            entry = file_hash(path)
            digest = str(entry.get("sha256", entry.get("bytes")))[:12]
            # checkpoint_0 and checkpoint_1 have the role `checkpoint`.
            hashes.setdefault(role.partition("_")[0], []).append(digest)
    content = repr([(texts.identify(line), text) for line, text in enumerate(texts.texts)])
    return {**hashes, "texts": hashlib.sha256(content.encode()).hexdigest()[:12]}


def _score(
    file: PairScores, pairs: np.ndarray, texts: StoryTexts, lines: Sequence[int], columns: Columns
) -> np.ndarray:
    """Return log-likelihoods of stories under prompts or albums, and add missing ones to ``file``.

    Args:
        file: File of log-likelihoods of earlier runs.
        pairs: [pairs, 2] index in ``lines`` (story) and in ``columns`` (prompt or album) of each
            needed pair.
        texts: Object that holds the stories of the split and the models that score them.
        lines: Number of each story's line in the split.
        columns: Prompts or albums under which stories are scored.

    Returns:
        [stories, columns] log-likelihoods; NaN for pairs that are not needed.
    """
    # Pairs are named by line numbers, so that runs with other draws or stories can reuse them.
    line_by_name = texts.find_lines(columns.texts)
    keys = []
    for story, column in pairs.tolist():
        condition = line_by_name[columns.texts[column]]
        if columns.true[story] == column:
            condition = texts.find_own_line(lines[story], condition)
        keys.append((lines[story], condition))
    missing = [key for key in dict.fromkeys(keys) if key not in file.scores]
    to_score = [(texts.condition(condition), texts.tokens(line)) for line, condition in missing]
    with tqdm(
        total=len(keys), initial=len(keys) - len(missing), unit="pair", disable=None
    ) as progress:
        for batch, log_probs in texts.likelihood.batches(to_score):
            # A story has up to a thousand words; a float32 sum would round away small differences.
            sums = [float(of_words.double().sum()) for of_words in log_probs]
            file.append(zip((missing[i] for i in batch), sums))
            progress.update(len(batch))
    values = [file.scores[key] for key in keys]
    scores = np.full((len(lines), len(columns.texts)), np.nan)
    scores[pairs[:, 0], pairs[:, 1]] = values
    return scores


def _print(report: Mapping[str, Any], noun: str) -> None:
    print(
        f"{report['stories']:,} of {report['stories_available']:,} stories, {report[noun]:,} "
        f"different {noun}, {report['candidates']} candidates, {report['draws']} draws, seed "
        f"{report['seed']}"
    )
    for name, (title, factor, digits, unit) in ROWS.items():
        if name in report:
            figure = report[name]
            values = (figure["value"], *figure["interval"], figure["chance"])
            value, low, high, chance = (f"{factor * x:.{digits}f}" for x in values)
            interval = f"95% interval [{low}, {high}]"
            print(f"{title:<13} {value:>6}{unit}  {interval}  chance {chance}{unit}")
    print(f"{'ties':<13} {100 * report['ties']:6.1f} %")
    print(report["signature"])


def _entries(
    texts: StoryTexts,
    lines: Sequence[int],
    scores: np.ndarray,
    true: np.ndarray,
    distractors: np.ndarray,
) -> list[dict[str, Any]]:
    """Return one JSON record per story: its line, its prompt or album, and its ranks.

    Args:
        texts: Texts of the split.
        lines: Line number of each of the S stories.
        scores: [S, C] log-likelihoods under C prompts or albums; NaN if not computed.
        true: [S] column of each story's own prompt or album.
        distractors: [draws, S, D] columns of the D other prompts or albums that were sampled.
    """
    by_draw = texts.rank_draws(scores, true, distractors)  # [draws, stories]
    entries = []
    for number, line in enumerate(lines):
        own = scores[number, true[number]]
        others = np.delete(scores[number], true[number])
        others = others[~np.isnan(others)]  # other draws' candidates only; the rest is NaN
        entry = {"id": line, "score": own, "best_other": float(others.max())}
        entries.append({**entry, **texts.rank_fields(line, own, others, by_draw[:, number])})
    return entries
