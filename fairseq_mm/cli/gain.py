"""How much of a system's gain over a baseline comes from the video.

  fairseq-mm gain --system vg.json --text-only bart.json --baseline mffg.json
  fairseq-mm gain --system 68.0,51.4,63.3 --text-only 64.0,46.4,58.9 \\
      --baseline 62.3,46.1,58.2
  fairseq-mm gain --system vg.jsonl --text-only bart.jsonl \\
      --baseline 62.3,46.1,58.2 --json gain.json

Each is what `fairseq-mm score --preset how2` writes with --json or --per-item,
or ROUGE-1, -2 and -L as three figures, in percent. Of the gain over the
baseline the video brings what the system gains over its own backbone without
video: the mean over ROUGE-1, -2 and -L of (system - text-only) / (system -
baseline), 83.6 % in Yu et al. 2021, whose figures are the second example.

Where both the system and its backbone are files of --per-item, the figures are
over the items that all files have, and the share has a 95 % interval by
resampling these; a baseline of which only figures are known counts as exact.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

import numpy as np

from fairseq_mm.cli import arguments
from fairseq_mm.data.input_files import parse_json, read_lines
from fairseq_mm.data.output_file import write_file
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED
from fairseq_mm.metrics.video_gain import VideoGain, share_interval, video_gain

SAMPLES = 1000
METRICS = ("rouge1", "rouge2", "rouge_l")
SYSTEMS = {
    "system": "The system, which reads transcript and video.",
    "text-only": "Its backbone, without the video.",
    "baseline": "What the system is compared with.",
}
_MADE_BY = "what fairseq-mm score --preset how2 writes with --json or --per-item"

Figures = tuple[float, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, text in SYSTEMS.items():
        parser.add_argument(f"--{name}", required=True, metavar="FILE|R1,R2,RL", help=text)
    parser.add_argument(
        "--bootstrap",
        type=int,
        metavar="N",
        help="Number of resamples for the interval, 0 for none (default: "
        f"{SAMPLES} where there are scores by item).",
    )
    arguments.add(parser, "seed", "json", seed={"default": SEED})


@dataclass(frozen=True)
class System:
    """A system's ROUGE.

    Args:
        name: of :data:`SYSTEMS`.
        source: file, or figures as they were typed.
        figures: between 0 and 1, one for each of :data:`METRICS`.
        signatures: what they were made with, where it is known, without the version.
        by_item: item id -> its figures, where they are known.
        num_items: that the figures were made of, where it is known.
    """

    name: str
    source: str
    figures: Figures
    signatures: Optional[tuple[str, ...]] = None
    by_item: Optional[dict[str, Figures]] = None
    num_items: Optional[int] = None

    def matrix(self) -> np.ndarray:
        """``[items, measures]``, or ``[measures]`` where only the figures are known."""
        return np.array(self.figures if self.by_item is None else list(self.by_item.values()))


def run(args: argparse.Namespace) -> None:
    for option in ("seed", "bootstrap"):
        value = getattr(args, option)
        if value is not None and value < 0:
            raise UserError(f"--{option}: must be 0 or more, but is {value}.")
    arguments.check_writable("--json", args.json)
    systems, num_items = _on_common_items(
        [_read_system(name, getattr(args, name.replace("-", "_"))) for name in SYSTEMS]
    )
    is_resampled = all(system.by_item is not None for system in systems[:2])
    if args.bootstrap and not is_resampled:
        raise UserError(
            "--bootstrap: needs the files of fairseq-mm score --per-item for --system and "
            "--text-only."
        )
    found = video_gain(*(system.figures for system in systems))
    samples = SAMPLES if args.bootstrap is None else args.bootstrap
    result = _result(systems, found, num_items)
    if found.share is not None and is_resampled and samples:
        matrices = [system.matrix() for system in systems]
        result["interval"] = share_interval(*matrices, samples=samples, seed=args.seed)
        result["bootstrap"] = {
            "samples": samples,
            "seed": args.seed,
            "baseline": "exact" if systems[2].by_item is None else "resampled",
        }
    _print(systems, found, result)
    if args.json:
        write_file(args.json, json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def _read_system(name: str, value: str) -> System:
    """Figures from a file or from the command line.

    Args:
        name: of :data:`SYSTEMS`.
        value: path of a file of ``fairseq-mm score``, or three figures separated by commas, in
            percent (or all of them 1 or less).

    Raises:
        UserError: if it is neither, or lacks one of :data:`METRICS`.
    """
    try:
        typed = [float(part) for part in value.split(",")]
    except ValueError:
        return _read_file(name, value)
    if len(typed) != len(METRICS) or not all(0 <= figure <= 100 for figure in typed):
        raise UserError(
            f"--{name}: must have {len(METRICS)} figures of 0 to 100, {', '.join(METRICS)}, but is "
            f"{value!r}."
        )
    scale = 1 if max(typed) <= 1 else 100
    return System(name, value, tuple(figure / scale for figure in typed))


def _read_file(name: str, path: str) -> System:
    if not Path(path).is_file():
        raise UserError(
            f"--{name} {path}: must be three figures (68.0,51.4,63.3) or a file, but is neither."
        )
    lines = [(number, line) for number, line in read_lines(Path(path)) if line.strip()]
    if not lines:
        raise UserError(f"--{name} {path}: must have scores, but is empty.")
    try:
        content = parse_json("\n".join(line for _, line in lines))
    except ValueError:
        content = None
    if isinstance(content, dict) and isinstance(content.get("scores"), list):
        return _of_result(name, path, content["scores"])
    by_item: dict[str, Figures] = {}
    for number, line in lines:
        where = f"--{name} {path}:{number}"
        try:
            entry = parse_json(line)
            key = str(entry["id"])
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{where}: must be {_MADE_BY}, but is not.") from None
        if key in by_item:
            raise UserError(f"{where}: item {key!r} has stood before.")
        by_item[key] = _figures_of(entry, where)
    return System(name, path, _mean(by_item), by_item=by_item, num_items=len(by_item))


def _figures_of(values: Mapping[str, Any], where: str) -> Figures:
    def is_figure(value: object) -> bool:
        return isinstance(value, (int, float)) and math.isfinite(value)

    missing = [name for name in METRICS if not is_figure(values.get(name))]
    if missing:
        raise UserError(f"{where}: has no figure {', '.join(missing)}; it must be {_MADE_BY}.")
    return tuple(float(values[name]) for name in METRICS)


def _of_result(name: str, path: str, scores: Sequence[Any]) -> System:
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
    return System(name, path, figures, signatures, num_items=rows[METRICS[0]].get("scored"))


def _mean(by_item: Mapping[str, Figures]) -> Figures:
    return tuple(sum(column) / len(column) for column in zip(*by_item.values()))


def _on_common_items(systems: Sequence[System]) -> tuple[list[System], Optional[int]]:
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
        if system.by_item is not None:
            by_item = {key: system.by_item[key] for key in common}
            system = replace(system, figures=_mean(by_item), by_item=by_item, num_items=len(common))
        narrowed.append(system)
    return narrowed, len(common)


def _result(
    systems: Sequence[System], found: VideoGain, num_items: Optional[int]
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "systems": {
            system.name: {"source": system.source, **dict(zip(METRICS, system.figures))}
            for system in systems
        },
        "gain": dict(zip(METRICS, found.gains)),
        "gain_from_video": dict(zip(METRICS, found.video_gains)),
        "shares": dict(zip(METRICS, found.shares)),
        "share": found.share,
        "message": _message(found),
    }
    if num_items is not None:
        result["items"] = num_items
    counts = sorted({system.num_items for system in systems if system.num_items is not None})
    if len(counts) > 1:
        result["note"] = (
            "The systems' figures are over different numbers of items: "
            f"{', '.join(f'{count:,}' for count in counts)}."
        )
    return result


def _message(found: VideoGain) -> str:
    if found.share is None:
        named = [name for name, share in zip(METRICS, found.shares) if share is None]
        return (
            f"The system is no better than the baseline in {', '.join(named)}: there is no gain of "
            "which the video could have a share."
        )
    share = f"{100 * found.share:.1f} %"
    if found.share < 0:
        return (
            "The system is worse than its own backbone without video: the video takes away "
            f"{share.lstrip('-')} of the gain over the baseline."
        )
    if found.share > 1:
        return (
            f"The video brings {share} of the gain over the baseline, more than all of it: the "
            "backbone without video is worse than the baseline."
        )
    return f"The video brings {share} of the gain over the baseline."


def _print(systems: Sequence[System], found: VideoGain, result: Mapping[str, Any]) -> None:
    rows = [(system.name, system.figures) for system in systems]
    rows += [("gain over baseline", found.gains), ("gain from video", found.video_gains)]
    print(f"{'':<20}" + "".join(f"{name:>9}" for name in METRICS))
    for name, figures in rows:
        print(f"{name:<20}" + "".join(f"{100 * figure:>9.2f}" for figure in figures))
    shares = ["-" if share is None else f"{100 * share:.1f} %" for share in found.shares]
    print(f"{'share of video':<20}" + "".join(f"{share:>9}" for share in shares))
    print(f"\n{result['message']}")
    if "items" in result:
        print(f"Items that all files have: {result['items']:,}.")
    if "note" in result:
        print(result["note"])
    if "bootstrap" not in result:
        return
    bounds, settings = result["interval"], result["bootstrap"]
    how = f"{settings['samples']} resamples, seed {settings['seed']}"
    if settings["baseline"] == "exact":
        how += ", the baseline's figures taken as exact"
    if bounds is None:
        print(f"No interval: in some of {how}, the baseline is as good as the system.")
    else:
        low, high = bounds
        print(f"95% interval: {100 * low:.1f} to {100 * high:.1f} % ({how}).")
