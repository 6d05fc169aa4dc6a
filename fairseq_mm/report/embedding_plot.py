"""Words and images as points of a plane, as inline SVG (Kiros et al. 2014, figure 5)."""

import math
from collections.abc import Sequence
from html import escape
from typing import Callable, NamedTuple, Optional

from fairseq_mm.errors import UserError
from fairseq_mm.report.html_page import Section

_WIDTH, _HEIGHT = 760, 560
_MARGIN = 56
_IMAGE = 64  # longer side of an image
_LETTER, _LINE = 7, 14  # room of a letter at 12 pixels

_STYLE = """
.plane svg { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  width: 60rem; max-width: 100%; height: auto; font: 12px system-ui, "DejaVu Sans", sans-serif; }
.plane text { fill: var(--quiet); }
.plane text.word { fill: var(--second); font-weight: 600; paint-order: stroke;
  stroke: var(--card); stroke-width: 3px; }
.plane .zero { stroke: var(--line); }
.plane circle.word { fill: var(--second); }
.plane circle.image { fill: var(--accent); }
"""

Place = tuple[float, float]


class PlotPoint(NamedTuple):
    """
    Attributes:
        label: the word, or the image's name.
        x: coordinate.
        y: coordinate, upwards.
        is_word: else an image.
        image: data URI of a small image to show in place of a dot, or None.
    """

    label: str
    x: float
    y: float
    is_word: bool
    image: Optional[str] = None


def plot_section(
    points: Sequence[PlotPoint],
    variance_shares: Sequence[float],
    *,
    heading: str = "Words and images",
) -> Section:
    """The plane, with both axes on one scale, so that distances and parallels are to be seen.

    Args:
        points: words are labelled dots; images are images, or dots, whose name is shown when
            pointed at.
        variance_shares: of the two axes, 0 to 1.
        heading: plain text.

    Raises:
        UserError: if there are no points, or one is not finite.
    """
    place_of = _plane(points)
    left, ground = place_of(0, 0)
    parts = [
        f'<line class="zero" x1="{left}" x2="{left}" y1="0" y2="{_HEIGHT}"/>'
        f'<line class="zero" x1="0" x2="{_WIDTH}" y1="{ground}" y2="{ground}"/>',
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 10}" text-anchor="middle">'
        f"{_axis_title('first', variance_shares[0])}</text>",
        f'<text transform="translate(18 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        f"{_axis_title('second', variance_shares[1])}</text>",
    ]
    parts += [_image(point, place_of(point.x, point.y)) for point in points if not point.is_word]
    words = [point for point in points if point.is_word]  # on top
    places = [place_of(word.x, word.y) for word in words]
    labels = _label_places(places, [word.label for word in words])
    parts += [_word(*entry) for entry in zip(words, places, labels)]
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(heading)}">'
        f"{''.join(parts)}</svg>"
    )
    return Section(heading, f'<div class="plane">{svg}</div>', _STYLE)


def _plane(points: Sequence[PlotPoint]) -> Callable[[float, float], Place]:
    """From coordinates to pixels: everything fits in, one scale for both axes."""
    if not points:
        raise UserError("there are no words or images to plot.")
    for point in points:
        if not (math.isfinite(point.x) and math.isfinite(point.y)):
            raise UserError(f"the coordinates of {point.label!r} must be finite, but are not.")
    xs, ys = [point.x for point in points], [point.y for point in points]
    spans = max(xs) - min(xs), max(ys) - min(ys)
    room = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN
    scales = [pixels / span for pixels, span in zip(room, spans) if span > 0]
    scale = min(scales) if scales else 1.0
    middle = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2

    def place_of(x: float, y: float) -> Place:
        return (
            round(_WIDTH / 2 + scale * (x - middle[0]), 1),
            round(_HEIGHT / 2 - scale * (y - middle[1]), 1),
        )

    return place_of


def _axis_title(name: str, share: float) -> str:
    return f"{name} principal component, {100 * share:.0f} % of the variance"


def _image(point: PlotPoint, place: Place) -> str:
    x, y = place
    title = f"<title>{escape(point.label)}</title>"
    if point.image is None:
        return f'<circle class="image" cx="{x}" cy="{y}" r="4">{title}</circle>'
    corner = f'x="{x - _IMAGE / 2:.1f}" y="{y - _IMAGE / 2:.1f}"'
    return (
        f'<image {corner} width="{_IMAGE}" height="{_IMAGE}" '
        f'href="{escape(point.image)}">{title}</image>'
    )


def _word(point: PlotPoint, place: Place, label: Place) -> str:
    return (
        f'<circle class="word" cx="{place[0]}" cy="{place[1]}" r="3"/>'
        f'<text class="word" x="{label[0]:.1f}" y="{label[1]:.1f}">{escape(point.label)}</text>'
    )


def _label_places(places: Sequence[Place], labels: Sequence[str]) -> list[Place]:
    """Left end of each label's ground line: the first place around the dot that no earlier label
    has; right of it where all are taken."""
    taken: list[tuple[float, float, float]] = []
    found = []
    for (x, y), label in zip(places, labels):
        width = _LETTER * len(label)
        around = [
            (x + 6, y + 4),
            (x - 6 - width, y + 4),
            *((x - width / 2, y + 4 + rows * (_LINE + 1)) for rows in (-1, 1, -2, 2)),
        ]
        inside = [(a, b) for a, b in around if 0 <= a <= _WIDTH - width and _LINE <= b <= _HEIGHT]
        free = [(a, b) for a, b in inside if not _overlaps(a, b, width, taken)]
        chosen = (free or inside or around)[0]
        taken.append((*chosen, width))
        found.append(chosen)
    return found


def _overlaps(
    left: float, ground: float, width: float, taken: Sequence[tuple[float, float, float]]
) -> bool:
    return any(
        left < other + other_width and other < left + width and abs(ground - below) < _LINE
        for other, below, other_width in taken
    )
