"""Training curves, one small chart a metric."""

from typing import Any

from fairseq_mm.report.figures import COLORS, Titles, draw
from fairseq_mm.report.html_page import Section, plain_number, section
from fairseq_mm.report.training_log import Curves

_COLORS = {"train": COLORS["accent"], "valid": COLORS["second"]}


def curves_section(curves: Curves, *, heading: str) -> Section:
    """Return a chart for each metric that changes in a subset."""
    charts = [
        _chart(name, subsets)
        for name, subsets in sorted(curves.items(), key=_shown_order)
        if any(len(set(points.values())) > 1 for points in subsets.values())
    ]
    note = "" if charts else "One epoch only: no curves."
    return section(heading, "figures.html", figures=charts, note=note)


def _shown_order(entry: tuple[str, dict]) -> tuple[bool, bool, str]:
    """Return a sort key: losses first, the learning rate last."""
    name = entry[0]
    return name == "lr", name not in ("ppl", "loss"), name


def _chart(name: str, subsets: dict[str, dict[float, float]]) -> str:
    values = sorted(value for points in subsets.values() for value in points.values())
    # a first perplexity of thousands would press all others onto the ground
    highest = min(values[-1], 4 * values[len(values) // 2]) if name == "ppl" else values[-1]

    def plot(axes: Any) -> Titles:
        titles = {}
        for number, (subset, points) in enumerate(subsets.items()):
            updates, gid = sorted(points), f"curve{number}"
            axes.plot(
                updates,
                [min(points[x], highest) for x in updates],
                *("o-" if subset in _COLORS else "o--",),
                color=_COLORS.get(subset, COLORS["quiet"]),
                markersize=3,
                label=subset,
                gid=gid,
            )
            titles[gid] = [
                f"{subset} {name} {plain_number(points[x])} at {x:.0f} updates" for x in updates
            ]
        axes.set_title(name, fontweight="bold")
        axes.set_xlabel("updates")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y")
        axes.legend(labelcolor="linecolor")
        return titles

    return draw(plot, 4.6, 2.7, name)
