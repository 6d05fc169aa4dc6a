"""Shows forget gate scores, one per video, as a histogram and tables (Yu et al. 2021, Figure 3).

Videos whose transcripts are not available are also listed (Table 6 of the paper).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_mm.metrics.gate_scores import Histogram
from fairseq_mm.report.figures import COLORS, Titles, draw
from fairseq_mm.report.html_page import Section, section


def histogram_section(available: Histogram, unavailable: Histogram) -> Section:
    """Return a page section with a stacked histogram of forget gate scores, one score per video.

    Args:
        available: Histogram of the videos with a transcript.
        unavailable: Histogram of the videos without a transcript, with the same bins.
    """
    edges = available.edges

    def plot(axes: Any) -> Titles:
        titles = {}
        width = edges[1] - edges[0]
        for name, counts, bottom, color in (
            ("transcript available", available.counts, [0] * len(edges), COLORS["accent"]),
            ("transcript not available", unavailable.counts, available.counts, COLORS["second"]),
        ):
            bins = [i for i, count in enumerate(counts) if count]
            bars = axes.bar(
                [edges[i] for i in bins],
                [counts[i] for i in bins],
                0.9 * width,
                [bottom[i] for i in bins],
                align="edge",
                color=color,
                edgecolor=color,  # a bar of one video among thousands is thinner than a pixel
                label=name if bins else "",  # no entry in the legend
            )
            # an id for each bar: the bars of one call are no group in the SVG
            for i, bar in zip(bins, bars):
                bar.set_gid(f"{color[1:]}-{i}")
                titles[bar.get_gid()] = [_title(available, unavailable, i)]
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xlabel("mean of the forget gate")
        axes.set_ylabel("videos")
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y")
        if any(unavailable.counts):
            axes.legend()
        return titles

    heading = "Forget gate scores"
    return section(heading, "figures.html", figures=[draw(plot, 10.5, 4.4, heading)], note="")


def _title(available: Histogram, unavailable: Histogram, i: int) -> str:
    low, high = available.edges[i : i + 2]
    count, without = available.counts[i] + unavailable.counts[i], unavailable.counts[i]
    title = f"{low:g} to {high:g}: {count:,} video{'s' * (count != 1)}"
    return title + (f", {without} without a transcript" if without else "")


def statistics_section(
    groups: Mapping[str, Mapping[str, float]], *, heading: str = "In figures"
) -> Section:
    """Return a page section with a table of the statistics of forget gate scores.

    Args:
        groups: Dict from the name of a group of videos, or of a layer, to its statistics, see
            :func:`fairseq_mm.metrics.gate_scores.gate_statistics`. Each is a row of the table.
        heading: Heading of the section, plain text.
    """
    names = list(next(iter(groups.values())))
    return section(heading, "gate_statistics.html", names=names, groups=groups)


def apart_section(rows: Sequence[Mapping[str, Any]], total: int) -> Section:
    """Return a page section that lists the videos without a transcript, the highest score first.

    Args:
        rows: One record per video: ``id``, ``score``, ``rank`` among all videos (1 is the highest
            score), and ``hypothesis`` and ``reference`` if they exist.
        total: Number of ranked videos, with and without a transcript.
    """
    ordered = sorted(rows, key=lambda row: -row["score"])
    return section("Transcript not available", "gate_apart.html", rows=ordered, total=total)
