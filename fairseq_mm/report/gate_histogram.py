"""Distribution of forget gates' scores as a histogram (Yu et al. 2021, Figure 3), with the videos
whose transcripts are not available set apart (Table 6)."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple, Optional

from fairseq_mm.metrics.gate_scores import Histogram
from fairseq_mm.report.html_page import Section

_WIDTH, _HEIGHT = 760, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 28, 46
_MOST_LABELS = 11

_STYLE = """
.histogram svg { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  width: 48rem; max-width: 100%; height: auto; font: 12px system-ui, "DejaVu Sans", sans-serif; }
.histogram text { fill: var(--quiet); }
.histogram .grid { stroke: var(--line); }
.histogram .all { fill: var(--accent); } .histogram .apart { fill: var(--second); }
.gates td { font-variant-numeric: tabular-nums; }
.apart-rows td { max-width: 34rem; padding-bottom: .6rem; }
"""


class ApartRow(NamedTuple):
    """A video whose transcript is not available.

    Attributes:
        id: of the video.
        score: of its gates.
        rank: among all, from the highest.
        hypothesis: what the model wrote, or None.
        reference: what people wrote, or None.
    """

    id: str
    score: float
    rank: int
    hypothesis: Optional[str]
    reference: Optional[str]


def histogram_section(
    rest: Histogram, apart: Histogram, *, heading: str = "Forget gate scores"
) -> Section:
    """Bars of the videos with a transcript, and on them those of the others.

    Args:
        rest: of the first.
        apart: of the others, with the same edges.
        heading: plain text.
    """
    edges = rest.edges
    totals = [a + b for a, b in zip(rest.counts, apart.counts)]
    step = _round_step(max(totals))
    top = step * -(-max(totals) // step)
    across, up = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    ground = _HEIGHT - _BOTTOM

    def x_of(i: float) -> float:
        return round(_LEFT + across * i / len(totals), 1)

    def height_of(count: float) -> float:
        return round(up * count / top, 1)

    parts = []
    for value in range(0, top + 1, step):
        y = round(ground - height_of(value), 1)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{value:,}</text>')
    for i, (below, above) in enumerate(zip(rest.counts, apart.counts)):
        title = f"{edges[i]:g} to {edges[i + 1]:g}: {_count(below + above)}"
        if above:
            title += f", {above} without a transcript"
        width = max(1.0, round(across / len(totals) - 1, 1))
        base = float(ground)
        bars = ""
        for count, kind in ((below, "all"), (above, "apart")):
            if count:
                height = max(1.0, height_of(count))  # a single video is to be seen
                base -= height
                bars += (
                    f'<rect class="{kind}" x="{x_of(i)}" y="{base:.1f}" width="{width}" '
                    f'height="{height}"/>'
                )
        if bars:
            parts.append(f"<g>{bars}<title>{escape(title)}</title></g>")
    every = next(n for n in (1, 2, 4, 5, 10, 20) if len(edges) <= n * _MOST_LABELS)
    first = round(edges[0] / (edges[1] - edges[0]))
    for i in range(-first % every, len(edges), every):
        parts.append(
            f'<text x="{x_of(i)}" y="{ground + 18}" text-anchor="middle">{edges[i]:g}</text>'
        )
    parts.append(
        f'<text x="{_LEFT + across / 2}" y="{_HEIGHT - 8}" text-anchor="middle">mean of the forget '
        f'gate</text><text x="{_LEFT - 40}" y="16">videos</text>'
    )
    if any(apart.counts):
        parts.append(
            f'<rect class="apart" x="{_WIDTH - _RIGHT - 152}" y="7" width="10" height="10"/>'
            f'<text x="{_WIDTH - _RIGHT}" y="16" text-anchor="end">transcript not available</text>'
        )
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(heading)}">'
        f"{''.join(parts)}</svg>"
    )
    return Section(heading, f'<div class="histogram">{svg}</div>', _STYLE)


def statistics_section(
    groups: Mapping[str, Mapping[str, float]], *, heading: str = "In figures"
) -> Section:
    """A table of :func:`fairseq_mm.metrics.gate_scores.gate_statistics`, a row a group."""
    names = list(next(iter(groups.values())))
    heads = "".join(f'<th scope="col" class="number">{escape(name)}</th>' for name in names)
    rows = []
    for group, figures in groups.items():
        cells = "".join(
            f'<td class="number">{figures[name]:,}</td>'
            if name == "count"
            else f'<td class="number">{figures[name]:.4f}</td>'
            for name in names
        )
        rows.append(f'<tr><th scope="row">{escape(group)}</th>{cells}</tr>')
    body = f'<table class="gates"><tr><th></th>{heads}</tr>{"".join(rows)}</table>'
    return Section(heading, body, _STYLE)


def apart_section(
    rows: Sequence[ApartRow], total: int, *, heading: str = "Transcript not available"
) -> Section:
    """The videos whose transcripts are not available, the highest score first.

    Args:
        rows: one a video.
        total: number of all videos.
        heading: plain text.
    """
    if not rows:
        return Section(heading, '<p class="quiet">No such video.</p>', _STYLE)
    parts = []
    for row in sorted(rows, key=lambda row: -row.score):
        texts = "".join(
            f"<td>{'–' if text is None else escape(text)}</td>"  # noqa: RUF001
            for text in (row.hypothesis, row.reference)
        )
        parts.append(
            f'<tr><td class="code">{escape(row.id)}</td><td class="number">{row.score:.4f}</td>'
            f'<td class="number">{row.rank:,} of {total:,}</td>{texts}</tr>'
        )
    body = (
        '<table class="apart-rows"><tr><th>video</th><th class="number">score</th>'
        '<th class="number">rank</th><th>generated summary</th><th>reference</th></tr>'
        f"{''.join(parts)}</table>"
    )
    return Section(heading, body, _STYLE)


def _round_step(highest: int) -> int:
    """1, 2 or 5 times a power of ten, six of which reach the highest count."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if highest <= 6 * factor * power:
                return factor * power
        power *= 10


def _count(number: int) -> str:
    return f"{number:,} video{'' if number == 1 else 's'}"
