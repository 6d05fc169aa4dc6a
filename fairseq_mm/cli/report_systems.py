"""Reads the systems of ``fairseq-mm report``, and computes their scores and differences."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fairseq_mm.cli import score_output
from fairseq_mm.cli.records import list_first
from fairseq_mm.cli.score_inputs import References, join_texts
from fairseq_mm.cli.score_metrics import load_tokenizer, split_metrics
from fairseq_mm.cli.score_visual_stories import without_separators
from fairseq_mm.data.elapsed_time import elapsed_time
from fairseq_mm.data.input_files import file_digest, read_json, read_objects
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.result_card import allows_unk
from fairseq_mm.metrics.score_rows import Row, TokenizedItems
from fairseq_mm.metrics.text_scores import score_texts
from fairseq_mm.report.system_scores import Difference, ScoreLine

# the others need transcripts, training texts or sentences, and score computes them
METRICS = (
    *("bleu", "meteor", "meteor_vist", "rouge", "rouge_l", "cider", "content_f1"),
    *("diversity", "self_bleu", "seq_rep"),
)
DEFAULT_METRICS = "bleu,rouge_l,cider"


class System(NamedTuple):
    """Texts of one system, and their scores.

    Attributes:
        name: Name on the page; empty for a single system.
        path: Path of the file of texts.
        texts: Dict from item id to text.
        scores: Dict from item id to a dict from the name of a score to its value.
    """

    name: str
    path: str
    texts: Mapping[str, str]
    scores: dict[str, dict[str, float]]


def read_systems(args: argparse.Namespace, references: References) -> list[System]:
    """Read the files of ``--hypotheses``; problems of the texts are printed on stderr."""
    names = _names(args)
    systems = []
    for name, path in zip(names, args.hypotheses):
        joined = join_texts(path, references)
        score_output.print_problems(path, joined.problems())
        systems.append(System(name, path, joined.texts, {}))
    first = systems[0]
    for system in systems[1:]:
        lacks = [key for key in first.texts if key not in system.texts]
        more = [key for key in system.texts if key not in first.texts]
        if lacks or more:
            what = " and ".join(
                f"{verb} {len(ids):,} ({list_first(ids, 3)})"
                for verb, ids in (("lacks", lacks), ("has besides", more))
                if ids
            )
            raise UserError(
                f"{system.path}: must have texts for the items of {first.path}, but {what}."
            )
    return systems


def _names(args: argparse.Namespace) -> list[str]:
    """Return the name of each system, from ``--name`` or the name of its file."""
    paths = args.hypotheses
    if args.name:
        if len(args.name) != len(paths):
            raise UserError(
                f"--name: must be given once for each of the {len(paths)} --hypotheses, but is "
                f"given {len(args.name)} times."
            )
        names = list(args.name)
    elif len(paths) == 1:
        return [""]
    else:
        names = [Path(path).stem for path in paths]
        if len(set(names)) < len(names):
            names = list(paths)
    if len(set(names)) < len(names):
        raise UserError(f"--name: systems must have different names, but have {', '.join(names)}.")
    return names


def check_score_options(args: argparse.Namespace) -> None:
    """Check the options about scores before files are read; set the default of ``--metrics``."""
    several = len(args.hypotheses) > 1
    for option in ("scores", "result"):
        if getattr(args, option) and (several or args.metrics):
            raise UserError(
                f"--{option}: leave it out; the report computes the scores of "
                f"{'several systems' if several else '--metrics'} itself."
            )
    if several and args.metrics is None:
        args.metrics = DEFAULT_METRICS
    for option in ("bootstrap", "tokenizer"):
        if getattr(args, option) is not None and args.metrics is None:
            raise UserError(f"--{option}: needs --metrics or several --hypotheses.")
    score_output.check_samples(args.bootstrap)
    if args.seed < 0:
        raise UserError(f"--seed: must be 0 or more, but is {args.seed}.")
    if args.metrics is not None:
        split_metrics(args.metrics, METRICS)


def compute_scores(
    args: argparse.Namespace, systems: Sequence[System], references: References
) -> list[ScoreLine]:
    """Compute the scores of all systems, and their differences from the first system.

    The scores of single items are added to ``System.scores``.
    """
    metrics, figures = split_metrics(args.metrics, METRICS)
    tokenizer = args.tokenizer or "ptb"
    tokenize = load_tokenizer(tokenizer)
    ids = list(systems[0].texts)
    originals = [[without_separators(text) for text in references.texts[key]] for key in ids]
    rows: list[list[Row]] = []
    with elapsed_time("scores") as show:
        written = [[tokenize(text) for text in texts] for texts in originals]
        for system in systems:
            show(system.name)
            texts = [without_separators(system.texts[key]) for key in ids]
            items = TokenizedItems(
                hypotheses=list(map(tokenize, texts)),
                references=written,
                tokenization=tokenizer,
                texts=texts,
                reference_texts=originals,
                allows_unk=allows_unk(system.path),
            )
            rows.append([row for row in score_texts(items, metrics) if row.name in figures])
        samples = args.bootstrap or score_output.COMPARE_SAMPLES
        compared = [
            {
                str(entry["metric"]): entry
                for entry in score_output.compare(others, rows[0], samples=samples, seed=args.seed)
            }
            for others in rows[1:]
        ]
    lines = []
    for number, row in enumerate(rows[0]):
        of_systems = [others[number] for others in rows]
        differences = [_difference(entries.get(row.name)) for entries in compared]
        # signatures differ if one system may write <unk> and another may not
        signature, note = (
            "; ".join(dict.fromkeys(filter(None, texts)))
            for texts in zip(*((other.signature, other.note) for other in of_systems))
        )
        values = [other.value for other in of_systems]
        lines.append(ScoreLine(row.name, values, differences, signature, note))
        for system, other in zip(systems, of_systems):
            for key, value in zip(ids, other.per_item or ()):
                if value is not None:
                    system.scores.setdefault(key, {})[other.name] = value
    return lines


def _difference(entry: Optional[Mapping[str, Any]]) -> Optional[Difference]:
    if entry is None:
        return None
    return Difference(entry["difference"], entry.get("interval"), entry.get("p"))


def resampling_note(args: argparse.Namespace) -> str:
    """Return the sentence of the page that says how the confidence intervals were computed."""
    samples = args.bootstrap or score_output.COMPARE_SAMPLES
    return (
        f"Differences have 95 % intervals of a paired bootstrap over the items ({samples:,} "
        f"samples, seed {args.seed}); those without 0 are bold. An interval is of its "
        "own difference: of twenty differences that are 0 in truth, one is bold on average."
    )


def read_scores(paths: Sequence[Path], system: System, references: References) -> None:
    """Read the files of ``--scores`` into ``System.scores``."""
    for path in paths:
        for where, record in read_objects(path):
            key = record.pop("id", None)
            if not isinstance(key, str) or key not in references.texts:
                raise UserError(f"{where}: the split has no item {key!r}.")
            # --per-item also writes texts
            text = record.get("hypothesis")
            if isinstance(text, str) and text != system.texts.get(key):
                raise UserError(
                    f"{where}: has the scores of {text[:60]!r}, but the text of {key!r} in "
                    f"{system.path} is {str(system.texts.get(key))[:60]!r}."
                )
            numbers = {x: float(y) for x, y in record.items() if isinstance(y, (int, float))}
            system.scores.setdefault(key, {}).update(numbers)


def read_result(path: Path, system: System, references: References) -> dict[str, Any]:
    """Read a file that ``fairseq-mm score --json`` wrote."""
    result = read_json(path)
    if not isinstance(result, dict) or not isinstance(result.get("scores"), list):
        raise UserError(f'{path}: must be what score --json writes, but has no list "scores".')
    for number, entry in enumerate(result["scores"], 1):
        # null is a valid value: a metric that could not be computed, with a note
        value = entry.get("value") if isinstance(entry, dict) else "nothing"
        if value is not None and not isinstance(value, (int, float)):
            raise UserError(
                f"{path}: entry {number} of `scores` must have a number or null as its `value`, "
                f"but is {repr(entry)[:60]}."
            )
    card = result.get("card")
    files = card.get("files") if isinstance(card, dict) else None
    for role, now in (("references", references.path), ("hypotheses", system.path)):
        entry = files.get(role) if isinstance(files, dict) else None
        digest = entry.get("sha256") if isinstance(entry, dict) else None
        if digest and os.path.isfile(now) and digest != file_digest(now):
            raise UserError(
                f"{path}: must have the scores of {now}, but was computed with other {role}, "
                f"{entry.get('path') if isinstance(entry, dict) else None}."
            )
    return result
