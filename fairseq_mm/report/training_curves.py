"""Training curves as inline SVG, one small chart a metric."""

import math
from html import escape

from fairseq_mm.report.html_page import Section
from fairseq_mm.report.training_log import Curves

_WIDTH, _HEIGHT = 330, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 26, 24  # room around the plot
_CLASSES = {"train": "first", "valid": "second"}
_MAX_STEPS = 5

_STYLE = """
.charts { display: flex; flex-wrap: wrap; gap: 1rem; }
.charts svg { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  width: 22rem; max-width: 100%; height: auto; font: 11px system-ui, "DejaVu Sans", sans-serif; }
.charts text { fill: var(--quiet); }
.charts text.name { fill: var(--text); font-size: 13px; font-weight: 600; }
.charts .grid { stroke: var(--line); }
.charts polyline { fill: none; stroke-width: 1.75; stroke-linejoin: round; }
.charts circle { fill: var(--card); stroke-width: 1.5; }
.charts .first { stroke: var(--accent); }
.charts text.first { fill: var(--accent); stroke: none; }
.charts .second { stroke: var(--second); }
.charts text.second { fill: var(--second); stroke: none; }
.charts .other { stroke: var(--quiet); } .charts text.other { stroke: none; }
.charts polyline.other { stroke-dasharray: 4 3; }
"""


def curves_section(curves: Curves, *, heading: str) -> Section:
    """A chart for every metric that changes in one of its subsets."""
    charts = [
        _chart(name, subsets)
        for name, subsets in sorted(curves.items(), key=_shown_order)
        if any(len(set(points.values())) > 1 for points in subsets.values())
    ]
    if charts:
        return Section(heading, f'<div class="charts">{"".join(charts)}</div>', _STYLE)
    return Section(heading, '<p class="quiet">One epoch only: no curves.</p>')


def _shown_order(entry: tuple[str, dict]) -> tuple[bool, bool, str]:
    """Losses first, the learning rate last."""
    name = entry[0]
    return name == "lr", name not in ("ppl", "loss"), name


def _chart(name: str, subsets: dict[str, dict[float, float]]) -> str:
    xs = [x for points in subsets.values() for x in points]
    left, right = min(xs), max(xs)
    ticks = _ticks(*_range(name, [y for points in subsets.values() for y in points.values()]))
    low, high = ticks[0], ticks[-1]

    def at(x: float, y: float) -> tuple[float, float]:
        share = (x - left) / (right - left) if right > left else 0.5
        height = _HEIGHT - _TOP - _BOTTOM
        inside = min(max((y - low) / (high - low), 0.0), 1.0)
        return (
            round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1),
            round(_TOP + (1 - inside) * height, 1),
        )

    parts = [f'<text class="name" x="{_LEFT}" y="16">{escape(name)}</text>']
    for value in ticks:
        _, y = at(left, value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 5}" y="{y + 4}" text-anchor="end">{value:g}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{left:,g}</text>')
    parts.append(
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 8}" text-anchor="end">{right:,g} updates</text>'
    )
    legend = _WIDTH - _RIGHT
    for subset, points in subsets.items():
        kind = _CLASSES.get(subset, "other")
        places = {updates: at(updates, value) for updates, value in sorted(points.items())}
        line = " ".join(f"{x},{y}" for x, y in places.values())
        parts.append(f'<polyline class="{kind}" points="{line}"/>')
        for updates, (x, y) in places.items():
            title = escape(f"{subset} {name} {points[updates]:g} at {updates:g} updates")
            circle = f'<circle class="{kind}" cx="{x}" cy="{y}" r="2">'
            parts.append(f"{circle}<title>{title}</title></circle>")
        parts.append(
            f'<text class="{kind}" x="{legend}" y="16" text-anchor="end">{escape(subset)}</text>'
        )
        legend -= 7 * len(subset) + 8
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)}">'
        f"{''.join(parts)}</svg>"
    )


def _range(name: str, values: list[float]) -> tuple[float, float]:
    """Limits of the vertical axis.

    A first perplexity of thousands would press all others onto the ground: of perplexities the
    axis ends at four times the median.
    """
    low, high = min(values), max(values)
    if name == "ppl":
        high = min(high, 4 * sorted(values)[len(values) // 2])
    return low, high


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from ``low`` or below to ``high`` or above, six at most (``low < high``)."""
    magnitude = 10.0 ** math.floor(math.log10((high - low) / _MAX_STEPS))
    for factor in (1, 2, 5, 10, 20):
        step = factor * magnitude
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first <= _MAX_STEPS:
            break
    return [round(number * step, 12) for number in range(first, last + 1)]
