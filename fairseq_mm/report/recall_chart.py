"""Recall curves as a drawing (the layout of Mao et al. 2015, figure 4)."""

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_mm.report.figures import draw


def recall_chart(
    title: str, percentages: Sequence[float], curves: Mapping[str, Sequence[float]]
) -> str:
    """Draw an SVG file: recall against the percentage of retrieved candidates.

    Args:
        title: Text above the chart.
        percentages: [n] percentage of each point, 0 to 100.
        curves: Name -> [n] recall in percent.
    """

    def plot(axes: Any) -> None:
        for name, recall in curves.items():
            axes.plot([0, *percentages], [0, *recall], linewidth=2, label=name, gid=name)
        axes.plot([0, 100], [0, 100], "--", color="#999999", linewidth=1)
        axes.set(title=title, xlabel="retrieved, %", ylabel="recall, %")
        axes.set(xlim=(0, 100), ylim=(0, 100))
        axes.grid()
        axes.legend(loc="lower right", labelcolor="linecolor")

    return draw(plot, 6.4, 5)
