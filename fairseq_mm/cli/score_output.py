"""Writes the output of ``fairseq-mm score``: tables, problems of the texts, JSON records."""

import json
import sys
from collections.abc import Sequence
from typing import Any, Optional

from fairseq_mm.cli.records import list_first
from fairseq_mm.data.output_file import write_file
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.bootstrap import interval, p_value, resampled
from fairseq_mm.metrics.score_rows import Row, format_figure

NAMED = 5  # ids in a message
COMPARE_SAMPLES = 1000
# more resamples take hours, and give no more digits of the interval than 10,000 resamples
_MAX_SAMPLES = 1_000_000


def check_samples(number: Optional[int]) -> None:
    """Raise UserError if ``number``, the value of ``--bootstrap``, is too large."""
    if number is not None and number > _MAX_SAMPLES:
        raise UserError(
            f"--bootstrap: must be at most {_MAX_SAMPLES:,} resamples, but is {number}."
        )


def write_items(
    path: str,
    ids: Sequence[str],
    texts: Sequence[str],
    rows: Sequence[Row],
    fields: Sequence[dict[str, Any]],
) -> None:
    """Write a JSON line for each item (such as an image), sorted by id.

    Args:
        path: Path of the file.
        ids: Ids of the items.
        texts: Hypothesis of each item.
        rows: Scores; only those that exist for single items are written.
        fields: Further fields of each line.
    """
    columns = {row.name: row.per_item for row in rows if row.per_item is not None}
    entries = [
        {"id": key, "hypothesis": texts[i]}
        | {name: x[i] for name, x in columns.items()}
        | fields[i]
        for i, key in enumerate(ids)
    ]
    # as text, item 10 would stand before item 9
    numeric = all(key.isdecimal() for key in ids)
    entries.sort(key=lambda entry: (int(entry["id"]) if numeric else 0, entry["id"]))
    lines = (json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    write_file(path, "".join(lines))


def compare(
    rows: Sequence[Row], others: Sequence[Row], *, samples: int, seed: int
) -> list[dict[str, object]]:
    """Return one JSON record per metric: the scores of two systems, and their difference.

    If possible, the difference has a 95 % confidence interval and a p-value, computed by a paired
    bootstrap.

    Args:
        rows: Scores of the first system by each metric.
        others: Scores of the second system by the same metrics on the same items.
        samples: Number of bootstrap samples.
        seed: Seed of the bootstrap.
    """
    compared = []
    for row, other in zip(rows, others):
        if row.value is None or other.value is None:
            continue
        entry: dict[str, object] = {
            "metric": row.name,
            "values": [row.value, other.value],
            "difference": row.value - other.value,
        }
        if row.sums is not None and other.sums is not None and row.statistic is not None:
            # one seed draws the same items for both systems: a paired bootstrap
            differences = resampled(row.sums, row.statistic, samples=samples, seed=seed)
            differences -= resampled(other.sums, row.statistic, samples=samples, seed=seed)
            entry["interval"] = interval(differences)
            entry["p"] = p_value(differences)
        compared.append(entry)
    return compared


def make_entry(row: Row, *, samples: int, seed: int) -> dict[str, object]:
    """Return the JSON record of one score.

    If ``samples`` is above 0, the record has a 95 % bootstrap interval from this number of samples.
    """
    entry: dict[str, object] = {
        "metric": row.name,
        "value": row.value,
        "scored": row.scored,
        "signature": row.signature,
    }
    if row.expected is not None:
        entry["expected"] = row.expected
    if row.note:
        entry["note"] = row.note
    if samples and row.value is not None and row.sums is not None and row.statistic is not None:
        figures = resampled(row.sums, row.statistic, samples=samples, seed=seed)
        entry["interval"] = interval(figures)
        # only with both numbers can somebody else compute the same interval
        entry["signature"] = f"{row.signature}|bootstrap:{samples}|seed:{seed}"
    return entry


def _format_interval(entry: dict[str, Any]) -> str:
    if "interval" not in entry:
        return ""
    low, high = entry["interval"]
    return f"[{format_figure(entry['metric'], low)}, {format_figure(entry['metric'], high)}]"


def _print_columns(lines: list[list[str]]) -> None:
    """Print a table without its empty columns; the first of ``lines`` is the header."""
    columns = [i for i in range(len(lines[0])) if any(line[i] for line in lines[1:])]
    widths = [max(len(line[i]) for line in lines) for i in columns]
    for line in lines:
        print("  ".join(line[i].ljust(width) for i, width in zip(columns, widths)).rstrip())


def print_problems(path: str, problems: dict[str, list[str]]) -> None:
    """Print problems of a file of texts to stderr.

    Args:
        path: Path of the file.
        problems: Result of :meth:`JoinedTexts.problems`.
    """
    for what, ids in problems.items():
        print(f"{path}: {len(ids)} {what}: {list_first(ids, NAMED)}", file=sys.stderr)


def print_result(result: dict[str, Any]) -> None:
    """Print the JSON result of the command as tables; print problems of the texts to stderr."""
    for system in result.get("texts", ()):
        if system["layout"] == "constant":
            # the most frequent text was not on the command line
            print(system["path"], file=sys.stderr)
        print_problems(system["path"], system["problems"])
    lines = [["metric", "value", "95% interval", "scored", "signature", "note"]]
    for entry in result["scores"]:
        name = entry["metric"]
        total = f"/{entry['expected']}" if "expected" in entry else ""
        cells = [name, format_figure(name, entry["value"]), _format_interval(entry)]
        cells += [f"{entry['scored']}{total}", entry["signature"], entry.get("note", "")]
        lines.append(cells)
    _print_columns(lines)
    if "visual_stories" in result:
        print(f"\n{result['visual_stories']['summary']}")
    if "comparison" not in result:
        return
    first, second = (system["path"] for system in result["texts"])
    print(f"\nA: {first}\nB: {second}")
    lines = [["metric", "A", "B", "A - B", "95% interval", "p"]]
    for entry in result["comparison"]:
        name = entry["metric"]
        figures = [format_figure(name, x) for x in (*entry["values"], entry["difference"])]
        p = f"{entry['p']:.3f}" if "p" in entry else ""
        lines.append([name, *figures, _format_interval(entry), p])
    _print_columns(lines)
