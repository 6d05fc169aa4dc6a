"""Makes the sections of a report with the scores of systems, their differences and intervals."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from fairseq_mm.report.figures import COLORS, Chart, Titles
from fairseq_mm.report.html_page import Section, render, section
from fairseq_mm.report.readable import label, main_names, readable


class Difference(NamedTuple):
    """Score of a system minus the score of the first system.

    Attributes:
        value: The difference.
        interval: Ends of the 95 % confidence interval; None if the score has no interval.
        p: Two-sided p-value; None if the score has no interval.
    """

    value: float
    interval: Optional[tuple[float, float]] = None
    p: Optional[float] = None

    @property
    def is_clear(self) -> bool:
        """Return True if the interval does not contain 0."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


class ScoreLine(NamedTuple):
    """Values of one score, such as BLEU-4, for all systems.

    Attributes:
        name: Name of the score, such as ``bleu4``.
        values: Score of each system; None for a missing score.
        differences: For each system after the first, its difference from the first; None if
            missing.
        signature: String that says how the score was computed.
        note: Remark, or the reason why the score is missing.
    """

    name: str
    values: Sequence[Optional[float]]
    differences: Sequence[Optional[Difference]] = ()
    signature: str = ""
    note: str = ""


def lines_of_result(result: Mapping[str, Any]) -> list[ScoreLine]:
    """Return the scores of a file that ``fairseq-mm score --json`` wrote."""
    return [
        ScoreLine(
            str(entry.get("metric")),
            [entry.get("value")],
            signature=str(entry.get("signature") or ""),
            note=str(entry.get("note") or ""),
        )
        for entry in result["scores"]
    ]


def glance_section(lines: Sequence[ScoreLine], systems: Sequence[str]) -> Section:
    """Return a page section without heading, with the most important scores of each system.

    Args:
        lines: All scores.
        systems: Name of each system.
    """
    by_name = {line.name: line for line in lines if any(x is not None for x in line.values)}
    shown = [by_name[name] for name in main_names(list(by_name))]
    return section("", "glance.html", lines=shown, systems=systems, label=label, number=readable)


def scores_section(
    lines: Sequence[ScoreLine],
    systems: Sequence[str],
    chart: Optional[Chart] = None,
    *,
    resampling: str = "",
) -> Section:
    """Return the page section with all scores; their signatures are hidden until a click.

    Args:
        lines: All scores.
        systems: Name of each system.
        chart: Chart of the differences, from :func:`difference_chart`.
        resampling: Sentence that says how the intervals were computed.
    """
    return section(
        "Scores",
        "system_scores.html",
        lines=lines,
        systems=systems,
        figure=render("figures.html", figures=[chart.draw()], note="") if chart else "",
        resampling=resampling,
        label=label,
        number=readable,
        ends=_ends,
    )


def _ends(name: str, difference: Difference) -> list[str]:
    """Return the rounded difference, followed by the ends of its interval if it has one."""
    values = [difference.value, *(difference.interval or ())]
    return [readable(name, value, is_difference=True).text for value in values]


def difference_chart(lines: Sequence[ScoreLine], systems: Sequence[str]) -> Optional[Chart]:
    """Return a chart with the confidence interval of each difference in points as a bar.

    Return None if no score in points has an interval. For the arguments see :func:`scores_section`.
    """
    rows = [
        (line.name, systems[i], difference)
        for line in lines
        for i, difference in enumerate(line.differences, 1)
        if difference is not None
        and difference.interval is not None
        and readable(line.name, difference.value).unit == "points"
    ]
    if not rows:
        return None

    def plot(axes: Any) -> Titles:
        texts = []
        for place, (name, system, difference) in enumerate(rows):
            value, low, high = (100 * x for x in (difference.value, *(difference.interval or ())))
            color = COLORS["accent"] if difference.is_clear else COLORS["quiet"]
            axes.plot([low, high], [place, place], color=color, linewidth=2)
            axes.plot([value], [place], "o", color=color, markersize=5, gid=f"difference{place}")
            shown = _ends(name, difference)
            texts.append(f"{label(name)}, {system}: {shown[0]} [{shown[1]}, {shown[2]}]")
        axes.axvline(0, color=COLORS["line"], linewidth=1)
        several = len(systems) > 2
        names = [f"{label(n)}, {system}" if several else label(n) for n, system, _ in rows]
        axes.set_yticks(range(len(rows)), names)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        first = systems[0] if several else f"{systems[1]} \u2212 {systems[0]}"
        axes.set_xlabel(f"difference from {first}, points" if several else f"{first}, points")
        axes.grid(axis="x")
        return {f"difference{place}": [text] for place, text in enumerate(texts)}

    return Chart("differences", plot, 6, 0.9 + 0.28 * len(rows))
