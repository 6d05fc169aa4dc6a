"""Distribution of forget gates' scores as a histogram (Yu et al. 2021, Figure 3), with the videos
whose transcripts are not available set apart (Table 6)."""

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_mm.metrics.gate_scores import Histogram
from fairseq_mm.report.figures import COLORS, Titles, draw
from fairseq_mm.report.html_page import Section, section


def histogram_section(
    rest: Histogram, apart: Histogram, *, heading: str = "Forget gate scores"
) -> Section:
    """Return stacked bars: videos with a transcript, then videos without.

    Args:
        rest: Histogram of the videos with a transcript.
        apart: Histogram of the videos without one, with the same edges.
        heading: Plain text.
    """
    edges = rest.edges

    def plot(axes: Any) -> Titles:
        titles = {}
        width = edges[1] - edges[0]
        for name, counts, bottom, color in (
            ("transcript available", rest.counts, [0] * len(rest.counts), COLORS["accent"]),
            ("transcript not available", apart.counts, rest.counts, COLORS["second"]),
        ):
            bins = [i for i, count in enumerate(counts) if count]
            bars = axes.bar(
                [edges[i] for i in bins],
                [counts[i] for i in bins],
                0.9 * width,
                [bottom[i] for i in bins],
                align="edge",
                color=color,
                edgecolor=color,  # lets a single video be seen
                label=name if bins else "",
            )
            for i, bar in zip(bins, bars):
                bar.set_gid(f"{color[1:]}-{i}")
                titles[bar.get_gid()] = [_title(rest, apart, i)]
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xlabel("mean of the forget gate")
        axes.set_ylabel("videos")
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y")
        if any(apart.counts):
            axes.legend()
        return titles

    return section(heading, "figures.html", figures=[draw(plot, 10.5, 4.4, heading)], note="")


def _title(rest: Histogram, apart: Histogram, i: int) -> str:
    count = rest.counts[i] + apart.counts[i]
    title = f"{rest.edges[i]:g} to {rest.edges[i + 1]:g}: {count:,} video{'s' * (count != 1)}"
    return title + (f", {apart.counts[i]} without a transcript" if apart.counts[i] else "")


def statistics_section(
    groups: Mapping[str, Mapping[str, float]], *, heading: str = "In figures"
) -> Section:
    """Return the table of :func:`fairseq_mm.metrics.gate_scores.gate_statistics`, one row per
    group.
    """
    names = list(next(iter(groups.values())))
    return section(heading, "gate_statistics.html", names=names, groups=groups)


def apart_section(
    rows: Sequence[Mapping[str, Any]], total: int, *, heading: str = "Transcript not available"
) -> Section:
    """Return the videos without a transcript, the highest score first.

    Args:
        rows: One record per video: ``id``, ``score``, ``rank`` among all videos from the highest,
            and ``hypothesis`` and ``reference`` if they exist.
        total: Number of all videos.
        heading: Plain text.
    """
    ordered = sorted(rows, key=lambda row: -row["score"])
    return section(heading, "gate_apart.html", rows=ordered, total=total)
