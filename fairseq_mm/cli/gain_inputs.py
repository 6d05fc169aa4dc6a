"""What ``fairseq-mm gain`` reads: figures of three systems, typed, of a whole or by item."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np

from fairseq_mm.errors import UserError

METRICS = ("rouge1", "rouge2", "rouge_l")
_MADE_BY = "what fairseq-mm score --preset how2 writes with --json or --per-item"

Figures = tuple[float, ...]


@dataclass(frozen=True)
class System:
    """A system's ROUGE.

    Args:
        option: that it was given with.
        source: file, or figures as they were typed.
        figures: between 0 and 1, one for each of :data:`METRICS`.
        signatures: what they were made with, where it is known, without the version.
        by_item: item id -> its figures, where they are known.
        num_items: that the figures were made of, where it is known.
    """

    option: str
    source: str
    figures: Figures
    signatures: Optional[tuple[str, ...]] = None
    by_item: Optional[dict[str, Figures]] = None
    num_items: Optional[int] = None

    def matrix(self) -> np.ndarray:
        """``[items, measures]``, in the order of ``by_item``."""
        return np.array(list((self.by_item or {}).values()))


def read_system(option: str, value: str) -> System:
    """Figures from a file or from the command line.

    Args:
        option: such as ``--system``, for messages.
        value: path of a file of ``fairseq-mm score``, or three figures separated by commas, in
            percent (or all of them 1 or less).

    Raises:
        UserError: if it is neither, or lacks one of :data:`METRICS`.
    """
    try:
        typed = [float(part) for part in value.split(",")]
    except ValueError:
        return _read_file(option, value)
    if len(typed) != len(METRICS) or not all(0 <= figure <= 100 for figure in typed):
        raise UserError(
            f"{option}: must have {len(METRICS)} figures of 0 to 100, {', '.join(METRICS)}, but is "
            f"{value!r}."
        )
    scale = 1 if max(typed) <= 1 else 100
    return System(option, value, tuple(figure / scale for figure in typed))


def _read_file(option: str, path: str) -> System:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise UserError(
            f"{option} {path}: must be three figures (68.0,51.4,63.3) or a file, but cannot be "
            f"read ({error.strerror})."
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{option} {path}: must be UTF-8 text, but is not ({error}).") from None
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if isinstance(content, dict) and isinstance(content.get("scores"), list):
        return _of_result(option, path, content["scores"])
    return _of_items(option, path, text)


def _figures_of(values: Mapping[str, Any], where: str) -> Figures:
    missing = [name for name in METRICS if not _is_figure(values.get(name))]
    if missing:
        raise UserError(f"{where}: has no figure {', '.join(missing)}; it must be {_MADE_BY}.")
    return tuple(float(values[name]) for name in METRICS)


def _is_figure(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _of_result(option: str, path: str, scores: Sequence[Any]) -> System:
    rows = {row["metric"]: row for row in scores if isinstance(row, dict) and "metric" in row}
    figures = _figures_of({name: row.get("value") for name, row in rows.items()}, path)
    signatures = tuple(
        "|".join(
            part
            for part in str(rows[name].get("signature", "")).split("|")
            if part.split(":")[0] not in ("version", "bootstrap", "seed")
        )
        for name in METRICS
    )
    num_items = rows[METRICS[0]].get("scored")
    return System(option, path, figures, signatures, num_items=num_items)


def _of_items(option: str, path: str, text: str) -> System:
    by_item: dict[str, Figures] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            key = entry["id"]
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{option} {path}:{number}: must be {_MADE_BY}, but is not.") from None
        if str(key) in by_item:
            raise UserError(f"{option} {path}:{number}: item {str(key)!r} has stood before.")
        by_item[str(key)] = _figures_of(entry, f"{option} {path}:{number}")
    if not by_item:
        raise UserError(f"{option} {path}: must have scores, but is empty.")
    return System(option, path, _mean(by_item), by_item=by_item, num_items=len(by_item))


def _mean(by_item: Mapping[str, Figures]) -> Figures:
    return tuple(sum(column) / len(column) for column in zip(*by_item.values()))


def on_common_items(systems: Sequence[System]) -> tuple[list[System], Optional[int]]:
    """The systems with figures over the items that all files by item have.

    Returns:
        The systems, whose items are in one order, and the number of items; None where no file
        has figures by item.

    Raises:
        UserError: if files have no item in common, or were scored in different ways.
    """
    signed = [system for system in systems if system.signatures is not None]
    for system in signed[1:]:
        if system.signatures != signed[0].signatures:
            raise UserError(
                f"{signed[0].source} and {system.source}: were scored in different ways: "
                f"{(signed[0].signatures or ('',))[0]} and {(system.signatures or ('',))[0]}."
            )
    tables = [system.by_item for system in systems if system.by_item is not None]
    if not tables:
        return list(systems), None
    common = [key for key in tables[0] if all(key in table for table in tables)]
    if not common:
        named = " and ".join(system.source for system in systems if system.by_item is not None)
        raise UserError(f"{named}: have no item in common.")
    narrowed = []
    for system in systems:
        if system.by_item is None:
            narrowed.append(system)
            continue
        by_item = {key: system.by_item[key] for key in common}
        figures = _mean(by_item)
        narrowed.append(replace(system, figures=figures, by_item=by_item, num_items=len(common)))
    return narrowed, len(common)
