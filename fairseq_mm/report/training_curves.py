"""Draws training curves from the log of fairseq-train, one small chart per metric.

The ``--log-format`` of the log is ``json``, ``simple`` or ``tqdm`` (redirected to a file). Lines
may begin with time stamps.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_mm.data.input_files import parse_json
from fairseq_mm.errors import UserError
from fairseq_mm.report.figures import COLORS, Chart, Titles
from fairseq_mm.report.html_page import Section, plain_number, section
from fairseq_mm.report.readable import label, readable

# metric -> subset (train, valid, ...) -> update -> value
Curves = dict[str, dict[str, dict[float, float]]]

# speed and sizes say nothing about learning; nll_loss is ppl on another scale
_NOT_SHOWN = re.compile(
    r"wps|ups|wpb|bsz|num_updates|gnorm|clip|loss_scale|train_wall|wall|\w*gb_free|nll_loss"
    r"|best_\w+"
)
_SIMPLE = re.compile(
    r"epoch (\d+) \| (?:\w+ on '([^']+)' subset \| )?(\w+ \S+(?: \| \w+ \S+)*)\s*$"
)
_STAT = re.compile(r"(\w+) (\S+)")


def read_training_log(path: Path) -> Curves:
    """Read the values of each metric in a training log.

    Returns nested dicts: ``curves[metric][subset][update]`` is a value, where ``subset`` is
    ``train`` or the name of a validation set. If a resumed run has logged an update twice, the
    later values are used.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
    curves: Curves = {}
    for line in re.split(r"[\r\n]+", text):  # tqdm ends its bars with \r
        subset, figures = _read_line(line)
        update = figures.get("num_updates", figures.get("epoch"))
        for name, value in figures.items():
            if update is not None and name != "epoch" and not _NOT_SHOWN.fullmatch(name):
                curves.setdefault(name, {}).setdefault(subset, {})[update] = value
    if not curves:
        raise UserError(
            f"{path}: has no line of fairseq-train that ends an epoch (as written with "
            "--log-format json or simple)."
        )
    return curves


def _read_line(line: str) -> tuple[str, dict[str, float]]:
    """Read a log line that ends an epoch or a validation.

    Returns the subset, such as ``train``, and a dict from each metric to its value. For any other
    line, both are empty.
    """
    start = line.find('{"epoch": ')
    if start >= 0:
        try:
            record = parse_json(line[start:])
        except ValueError:
            return "", {}
        subsets = {key.rsplit("_num_updates", 1)[0] for key in record if "_num_updates" in key}
        # inside an epoch, the names have no subset: "num_updates" instead of "train_num_updates"
        if len(subsets) != 1:
            return "", {}
        subset = subsets.pop()
        figures = {
            key[len(subset) + 1 :] if key.startswith(f"{subset}_") else key: value
            for key, value in record.items()
        }
        return subset, _numbers(figures)
    match = _SIMPLE.search(line)
    if match is None:
        return "", {}
    epoch, subset, stats = match.groups()
    return subset or "train", _numbers({"epoch": epoch, **dict(_STAT.findall(stats))})


def _numbers(figures: dict) -> dict[str, float]:
    """Return the values of ``figures`` that are, or can be parsed as, finite numbers."""
    numbers = {}
    for name, value in figures.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        if math.isfinite(number):
            numbers[name] = number
    return numbers


_COLORS = {"train": COLORS["accent"], "valid": COLORS["second"]}


def training_charts(curves: Curves) -> list[Chart]:
    """Return one chart per metric that changes during the training.

    ``curves`` is the result of :func:`read_training_log`.
    """
    return [
        _chart(name, subsets)
        for name, subsets in sorted(curves.items(), key=_shown_order)
        if any(len(set(points.values())) > 1 for points in subsets.values())
    ]


def curves_section(charts: Sequence[Chart]) -> Section:
    """Return a page section, hidden until a click, with the charts of :func:`training_charts`."""
    note = "" if charts else "One epoch only: no curves."
    drawn = [chart.draw() for chart in charts]
    return section("Training", "figures.html", figures=drawn, note=note)._replace(is_folded=True)


def _shown_order(entry: tuple[str, dict]) -> tuple[bool, bool, str]:
    """Return the sort key of (metric, values): ``loss`` and ``ppl`` first, learning rate last."""
    name = entry[0]
    return name == "lr", name not in ("ppl", "loss"), name


def _chart(name: str, subsets: dict[str, dict[float, float]]) -> Chart:
    values = sorted(value for points in subsets.values() for value in points.values())
    # scores in points, as in the rest of the page
    scale = 100 if readable(name, values[-1]).unit == "points" else 1
    # a first perplexity of thousands would flatten the rest of the curve
    highest = min(values[-1], 4 * values[len(values) // 2]) if name == "ppl" else values[-1]

    title = label(name)

    def plot(axes: Any) -> Titles:
        titles = {}
        for number, (subset, points) in enumerate(subsets.items()):
            updates, gid = sorted(points), f"curve{number}"
            axes.plot(
                updates,
                [scale * min(points[x], highest) for x in updates],
                "o-" if subset in _COLORS else "o--",
                color=_COLORS.get(subset, COLORS["quiet"]),
                markersize=3,
                label=subset,
                gid=gid,
            )
            titles[gid] = [
                f"{subset} {title} {plain_number(scale * points[x])} at {x:,.0f} updates"
                for x in updates
            ]
        axes.set_title(title, fontweight="bold")
        if scale > 1:
            axes.set_ylabel("points")
        axes.set_xlabel("updates")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y")
        axes.legend(labelcolor="linecolor")
        return titles

    return Chart(name, plot, 4.6, 2.7)
