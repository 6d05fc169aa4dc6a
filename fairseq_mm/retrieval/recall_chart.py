"""Recall curves as a drawing (the layout of Mao et al. 2015, figure 4)."""

from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT, _MARGIN = 460, 360, 54
_COLORS = ("#1f6fb4", "#d1495b", "#3a7d44", "#8f5fbf")


def recall_chart(
    title: str, percentages: Sequence[float], curves: Mapping[str, Sequence[float]]
) -> str:
    """An SVG image: recall against the percentage of the candidates that are retrieved.

    Args:
        title: stands above it.
        percentages: ``[n]`` of each point, 0 to 100.
        curves: name -> ``[n]`` recall in percent.
    """
    across, up = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN

    def place(x: float, y: float) -> str:
        return f"{_MARGIN + across * x / 100:.1f},{_HEIGHT - _MARGIN - up * y / 100:.1f}"

    parts = [f'<text x="{_WIDTH / 2}" y="24" text-anchor="middle">{escape(title)}</text>']
    for tick in range(0, 101, 20):
        x, y = place(tick, tick).split(",")
        parts.append(
            f'<path d="M{place(tick, 0)} L{place(tick, 100)} M{place(0, tick)} L{place(100, tick)}"'
            ' stroke="#ddd"/>'
            f'<text x="{x}" y="{_HEIGHT - _MARGIN + 16}" text-anchor="middle">{tick}</text>'
            f'<text x="{_MARGIN - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{tick}</text>'
        )
    parts.append(
        f'<path d="M{place(0, 0)} L{place(100, 100)}" stroke="#999" stroke-dasharray="4 4"/>'
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 14}" text-anchor="middle">retrieved, %</text>'
        f'<text transform="translate(16 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">recall, %'
        "</text>"
    )
    for number, (name, recall) in enumerate(curves.items()):
        color = _COLORS[number % len(_COLORS)]
        points = " ".join(place(x, y) for x, y in zip([0, *percentages], [0, *recall]))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
            f'<text x="{_WIDTH - _MARGIN - 8}" y="{_HEIGHT - _MARGIN - 12 - 16 * number}" '
            f'text-anchor="end" fill="{color}">{escape(name)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )
