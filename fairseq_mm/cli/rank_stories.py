"""Tests for ``fairseq-mm rank`` whether stories fit their own prompt or images best."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Union

import numpy as np
from tqdm.auto import tqdm

from fairseq_mm.cli.likelihood import TEXTS, PromptTexts, Stories, build_card, sample_lines
from fairseq_mm.cli.run_set_up import only_writer
from fairseq_mm.data.elapsed_time import elapsed_time
from fairseq_mm.data.input_files import parse_json
from fairseq_mm.data.output_file import write_file
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.metrics import condition_ranking
from fairseq_mm.metrics.condition_ranking import AlbumRanking, Columns, PromptRanking
from fairseq_mm.metrics.score_rows import signature

# figure -> title, factor, decimals and unit in the table
ROWS = {
    "accuracy": ("accuracy", 100, 1, " %"),
    "first": ("ranked first", 100, 1, " %"),
    "mean_rank": ("mean rank", 1, 2, ""),
}


def rank_stories(args: argparse.Namespace, checkpoints: Sequence[Checkpoint], kind: str) -> None:
    """Rank each story's own prompt or images among others, by the likelihood of the story.

    Args:
        args: Parsed command line.
        checkpoints: One opened checkpoint, or several checkpoints of an ensemble.
        kind: ``prompts`` or ``albums``.
    """
    started = time.time()
    if args.candidates < 2:
        raise UserError("--candidates: must be 2 or more, the story's own included.")
    texts = TEXTS[kind](args, checkpoints)
    if not texts.names:
        raise UserError(f"{texts.models.files[0]}: is a language model, which reads no prompt.")
    lines = sample_lines(len(texts.texts), args.stories, args.seed)
    columns = condition_ranking.condition_columns(texts.names[line] for line in lines)
    if len(columns.texts) < args.candidates:
        raise UserError(
            f"{args.data}: {len(lines)} stories of {args.split} have {len(columns.texts)} "
            f"different {kind}, but --candidates {args.candidates} needs as many: give more "
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
    identity = {**texts.identity(), "split": args.split, "precision": args.precision}
    output = args.output or name_output(texts.models.files, args.split)
    with only_writer(output):
        # The file may have likelihoods of an earlier run, which are not computed again.
        file = PairScores(output, identity, condition="prompt" if kind == "prompts" else "images")
        pairs = condition_ranking.needed_pairs(columns.true, distractors)
        scores = _score(file, pairs, texts, lines, columns)
        rank = (
            condition_ranking.rank_prompts if kind == "prompts" else condition_ranking.rank_albums
        )
        with elapsed_time("confidence intervals"):
            result: Any = rank(scores, columns.true, distractors, seed=args.seed)
        report = {
            **_to_json(result),
            "stories": len(lines),
            "stories_available": len(texts.texts),
            kind: len(columns.texts),
            "candidates": args.candidates,
            "draws": args.draws,
            "seed": args.seed,
            "signature": _signature(kind, args, len(lines), len(columns.texts), texts),
            "scores_of": identity,
        }
        _print(report, kind)
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


def name_output(files: Sequence[str], split: str) -> str:
    """Return the default output folder, ``CHECKPOINT.rank-SPLIT``.

    If ``files`` has several checkpoints, the name also contains their number.
    """
    others = f"+{len(files) - 1}" if len(files) > 1 else ""
    return f"{os.path.splitext(files[0])[0]}{others}.rank-{split}"


def _score(
    file: "PairScores",
    pairs: np.ndarray,
    texts: Stories,
    lines: Sequence[int],
    columns: Columns,
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
            condition = texts.find_own_line(lines[story], line_by_name)
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
    return condition_ranking.score_matrix(pairs, values, len(lines), len(columns.texts))


def _to_json(result: Union[PromptRanking, AlbumRanking]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, value in result._asdict().items():
        if isinstance(value, condition_ranking.Figure):
            value = value._asdict()
        figures[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return figures


def _signature(
    kind: str, args: argparse.Namespace, stories: int, num_columns: int, texts: Stories
) -> str:
    return signature(
        f"{kind[:-1]}_ranking",
        split=args.split,
        stories=stories,
        **{kind: num_columns},
        candidates=args.candidates,
        draws=args.draws,
        seed=args.seed,
        words=getattr(texts, "num_words", None),  # visual stories are never truncated
        models=len(texts.models.files),
        prec=args.precision,
        ties="shared"
        if kind == "prompts"
        else f"against-the-model-within-{condition_ranking.TIE:g}-nats",
    )


def _print(report: Mapping[str, Any], kind: str) -> None:
    print(
        f"{report['stories']:,} of {report['stories_available']:,} stories, {report[kind]:,} "
        f"different {kind}, {report['candidates']} candidates, {report['draws']} draws, seed "
        f"{report['seed']}"
    )
    for name, (title, factor, digits, unit) in ROWS.items():
        if name not in report:
            continue
        figure = report[name]

        def write(value: float, factor: int = factor, digits: int = digits) -> str:
            return f"{factor * value:.{digits}f}"

        interval = _write_interval(figure["interval"], write)
        line = f"{title:<13} {write(figure['value']):>6}{unit}  {interval}  "
        line += f"chance {write(figure['chance'])}{unit}"
        print(line)
    print(f"{'ties':<13} {100 * report['ties']:6.1f} %")
    print(report["signature"])


def _write_interval(interval: Sequence[float], write: Callable[[float], str]) -> str:
    return f"95% interval [{', '.join(map(write, interval))}]"


def _entries(
    texts: Stories,
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
    is_prompt = isinstance(texts, PromptTexts)
    compare = condition_ranking.draw_credits if is_prompt else condition_ranking.candidate_ranks
    by_draw = compare(scores, true, distractors)  # [draws, stories]
    entries = []
    for number, line in enumerate(lines):
        own = scores[number, true[number]]
        others = np.delete(scores[number], true[number])
        others = others[~np.isnan(others)]  # other draws' candidates only; the rest is NaN
        entry: dict[str, Any] = {"id": line, "score": own, "best_other": float(others.max())}
        if isinstance(texts, PromptTexts):
            entry["prompt"] = texts.names[line]
            entry["prompts"] = 1 + len(others)
            entry["rank"] = 1 + int((others > own).sum())
            entry["accuracy"] = float(by_draw[:, number].mean())
        else:
            entry["album"] = texts.names[line]
            entry["images"] = texts.visual_ids[line].split("\t")
            entry["ranks"] = by_draw[:, number].tolist()
        entries.append(entry)
    return entries


FILE = "likelihoods.jsonl"
Line = tuple[int, int]


class PairScores:
    """File of log-likelihoods of pairs of a story and a condition (a prompt or image sequence).

    Only one process may write to the file. The folder is created if it does not exist. Raises
    UserError if the file cannot be written, or has scores with other settings.

    Args:
        folder: Folder of the file.
        identity: Settings that determine the scores, as JSON values by name.
        condition: Name of the condition in the file, ``prompt`` or ``images``.

    Attributes:
        path: Path of the file.
        scores: Log-likelihood of each pair (line of the story, line of the condition).
    """

    def __init__(self, folder: str, identity: dict[str, Any], *, condition: str = "prompt") -> None:
        self.path = Path(folder) / FILE
        self.condition = condition
        self.scores: dict[Line, float] = {}
        # as it comes back from the file: tuples become lists
        identity = json.loads(json.dumps(identity))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and self._read(identity):
                return
            # by a rename, so that the first line of an existing file is complete
            temporary = self.path.with_name(FILE + ".tmp")
            temporary.write_text(json.dumps({"scores_of": identity}) + "\n")
            os.replace(temporary, self.path)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}).") from None

    def append(self, scores: Iterable[tuple[Line, float]]) -> None:
        """Append scores to the file, so that they are kept if the run is interrupted.

        ``scores`` are (pair, log-likelihood), where a pair is (line of the story, line of the
        condition).
        """
        lines = []
        for (story, condition), value in scores:
            self.scores[story, condition] = value
            entry = {"story": story, self.condition: condition, "log_likelihood": value}
            lines.append(json.dumps(entry) + "\n")
        # one write of whole lines: a kill in between leaves at most one incomplete line
        with open(self.path, "a") as file:
            file.write("".join(lines))

    def _read(self, identity: dict[str, Any]) -> bool:
        """Read the scores of the file, and remove an incomplete last line.

        Returns False if the file has no complete line. Raises UserError if its settings differ from
        ``identity``.
        """
        content = self.path.read_bytes()
        # a line without its end was being written when the run was killed
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)
        if not whole:
            return False
        first, *lines = content[:whole].decode(errors="replace").split("\n")[:-1]
        try:
            stored = dict(parse_json(first)["scores_of"])
            for line in lines:
                entry = parse_json(line)
                self.scores[entry["story"], entry[self.condition]] = float(entry["log_likelihood"])
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{self.path}: is no file of likelihoods; delete it to start anew."
            ) from None
        for key in {**identity, **stored}:
            if stored.get(key) != identity.get(key):
                raise UserError(
                    f"{self.path} holds likelihoods with {key} = {stored.get(key)!r}, but this run "
                    f"has {identity.get(key)!r}: give another --output, or delete that file."
                )
        return True
