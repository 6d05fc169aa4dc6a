"""Plots words and images as points of a plane (Kiros et al. 2014, Figure 5)."""

import base64
import io
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from PIL import Image

from fairseq_mm.report.figures import COLORS, Titles, draw
from fairseq_mm.report.html_page import Section, section

_IMAGE = 64  # longer side of an image in pixels
# places of a label, the best first: offset from the dot in pixels, and horizontal alignment
_LABEL_PLACES = (
    (6, 0, "left"),
    (-6, 0, "right"),
    (0, 14, "center"),
    (0, -14, "center"),
    (0, 28, "center"),
    (0, -28, "center"),
)


class PlotPoint(NamedTuple):
    """Word or image at a point of the plane; ``image``, a data URI, is drawn in place of a dot."""

    label: str
    x: float
    y: float
    is_word: bool
    image: Optional[str] = None


def plot_section(points: Sequence[PlotPoint], variance_shares: np.ndarray) -> Section:
    """Return a page section with a plot of words as labelled dots and of images as thumbnails; an
    image without a thumbnail is a dot whose label appears on hover. ``variance_shares``
    has each axis's share of the variance, 0 to 1."""

    def plot(axes: Any) -> Titles:
        axes.axhline(0, color=COLORS["line"], zorder=0)
        axes.axvline(0, color=COLORS["line"], zorder=0)
        # one scale for both axes, so that distances and angles on the page are right
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.1)
        axes.set(xticks=[], yticks=[])
        for name, order, share in zip("xy", ("first", "second"), variance_shares):
            title = f"{order} principal component, {100 * share:.0f} % of the variance"
            axes.set(**{f"{name}label": title})
        titles = {f"point{n}": [p.label] for n, p in enumerate(points) if not p.is_word}
        for number, point in enumerate(points):
            color = COLORS["second" if point.is_word else "accent"]
            size = 0 if point.image else 5 - point.is_word
            # images also have a dot, invisible: the limits of the plot follow only dots
            gid = None if point.image else f"point{number}"
            axes.plot(point.x, point.y, "o", color=color, markersize=size, gid=gid)
            if point.image:
                _add_image(axes, point, f"point{number}")
        _add_labels(axes, [point for point in points if point.is_word])
        return titles

    heading = "Words and images"
    return section(heading, "figures.html", figures=[draw(plot, 13, 9.6, heading)], note="")


def _add_image(axes: Any, point: PlotPoint, gid: str) -> None:
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    content = io.BytesIO(base64.b64decode(str(point.image).partition(",")[2]))
    with Image.open(content) as opened:
        image = opened.convert("RGB")
    image.thumbnail((2 * _IMAGE, 2 * _IMAGE))  # twice the size, for screens of high density
    artist = OffsetImage(np.asarray(image), zoom=_IMAGE / max(image.size))
    box = AnnotationBbox(artist, (point.x, point.y), frameon=False, pad=0, zorder=1)
    box.set_gid(gid)
    axes.add_artist(box)


def _add_labels(axes: Any, words: Sequence[PlotPoint]) -> None:
    """Write the label of each word beside its dot, at the first free place inside the plot."""
    # the layout is fixed here: labels must not move the axes after their places were measured
    axes.figure.draw_without_rendering()
    axes.figure.set_layout_engine("none")
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    boxes: list[Any] = []
    for number, word in enumerate(words):
        labels = []
        for dx, dy, alignment in _LABEL_PLACES:
            # matplotlib knows the extent of a text only after it is part of the figure
            label = axes.annotate(
                word.label,
                (word.x, word.y),
                (dx, dy),
                textcoords="offset points",
                ha=alignment,
                va="center",
                color=COLORS["second"],
                fontweight="bold",
                gid=f"word{number}",
            )
            box = label.get_window_extent()
            is_outside = box.x0 < axes.bbox.x0 or axes.bbox.x1 < box.x1
            labels.append((is_outside, any(box.overlaps(other) for other in boxes), label, box))
        # min keeps the first of equal places, the best
        best = min(labels, key=lambda entry: entry[:2])
        boxes.append(best[3])
        for entry in labels:
            if entry is not best:
                entry[2].remove()
