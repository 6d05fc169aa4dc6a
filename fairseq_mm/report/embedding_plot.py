"""Words and images as points of a plane (Kiros et al. 2014, figure 5)."""

import base64
import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from PIL import Image

from fairseq_mm.errors import UserError
from fairseq_mm.report.figures import COLORS, Titles, draw
from fairseq_mm.report.html_page import Section, section

_IMAGE = 64  # longer side of an image in pixels
# offsets of a label from its dot, in pixels, and which of its sides is there
_AROUND = (
    *((6, 0, "left", "center"), (-6, 0, "right", "center")),
    *((0, rows * 14, "center", "center") for rows in (1, -1, 2, -2)),
)


class PlotPoint(NamedTuple):
    """Point of a plot.

    Attributes:
        label: The word, or the image's name.
        x: Coordinate to the right.
        y: Coordinate upwards.
        is_word: True for a word, False for an image.
        image: Data URI of a small image that replaces the dot, or None.
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
    """Plot points on a plane whose two axes have one scale, so that distances and angles are
    comparable.

    Args:
        points: Words, shown as labelled dots, and images, shown as images or as dots with a name on
            hover.
        variance_shares: Variance shares of the two axes, 0 to 1.
        heading: Plain text.

    Raises:
        UserError: if there are no points, or a coordinate is not finite.
    """
    if not points:
        raise UserError("there are no words or images to plot.")
    for point in points:
        if not (math.isfinite(point.x) and math.isfinite(point.y)):
            raise UserError(f"the coordinates of {point.label!r} must be finite, but are not.")

    def plot(axes: Any) -> Titles:
        axes.axhline(0, color=COLORS["line"], zorder=0)
        axes.axvline(0, color=COLORS["line"], zorder=0)
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.1)
        axes.set(xticks=[], yticks=[])
        for name, share in zip("xy", variance_shares):
            order = "first" if name == "x" else "second"
            title = f"{order} principal component, {100 * share:.0f} % of the variance"
            axes.set(**{f"{name}label": title})
        titles = {f"point{n}": [p.label] for n, p in enumerate(points) if not p.is_word}
        for number, point in enumerate(points):
            color = COLORS["second" if point.is_word else "accent"]
            size = 0 if point.image else 5 - point.is_word
            axes.plot(point.x, point.y, "o", color=color, markersize=size, gid=f"point{number}")
            if point.image:
                axes.lines[-1].set_gid(None)
                _add_image(axes, point, f"point{number}")
        _add_labels(axes, [point for point in points if point.is_word])
        return titles

    return section(heading, "figures.html", figures=[draw(plot, 13, 9.6, heading)], note="")


def _add_image(axes: Any, point: PlotPoint, gid: str) -> None:
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    content = io.BytesIO(base64.b64decode(str(point.image).partition(",")[2]))
    with Image.open(content) as opened:
        image = opened.convert("RGB")
    image.thumbnail((2 * _IMAGE, 2 * _IMAGE))
    shown = OffsetImage(np.asarray(image), zoom=_IMAGE / max(image.size))
    box = AnnotationBbox(shown, (point.x, point.y), frameon=False, pad=0, zorder=1)
    box.set_gid(gid)
    axes.add_artist(box)


def _add_labels(axes: Any, words: Sequence[PlotPoint]) -> None:
    """Put each label at the first free place around its dot that lies inside the plot."""
    axes.figure.draw_without_rendering()  # places are final from here on
    axes.figure.set_layout_engine("none")
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    taken: list[Any] = []
    for number, word in enumerate(words):
        labels = []
        for dx, dy, side, middle in _AROUND:
            label = axes.annotate(
                word.label,
                (word.x, word.y),
                (dx, dy),
                textcoords="offset points",
                ha=side,
                va=middle,
                color=COLORS["second"],
                fontweight="bold",
                gid=f"word{number}",
            )
            box = label.get_window_extent()
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
            free = not any(box.overlaps(other) for other in taken)
            labels.append((not inside, not free, label, box))
        chosen = min(labels, key=lambda entry: entry[:2])
        taken.append(chosen[3])
        for entry in labels:
            if entry is not chosen:
                entry[2].remove()
