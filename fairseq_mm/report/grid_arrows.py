"""Draws arrows over an image for a non-local block (Li et al. 2020, Transtory-XL, Figure 4).

Arrows begin at one position of the image's feature grid and end at the most similar positions.
Hovering over another position shows the arrows from there; a click keeps them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.report.html_page import Section, plain_number, section
from fairseq_mm.report.visual_story_sections import EmbeddedImage

# width of a drawing in units of its viewBox: large, because coordinates are rounded to integers
_WIDTH = 1000


class Box(NamedTuple):
    """Rectangle on an image, in fractions of the image's width and height.

    Edges below 0 or above 1 lie outside the image, where the extractor pads it.
    """

    left: float
    top: float
    right: float
    bottom: float


WHOLE = Box(0.0, 0.0, 1.0, 1.0)


class Drawing(NamedTuple):
    """Image with the similarities between the R = rows * columns positions of its feature grid."""

    place: int  # index of the image in the story, from 0
    name: str  # name of the image in the caption, plain text
    image: Optional[EmbeddedImage]  # image under the arrows; None to draw only the arrows
    box: Box  # part of the image that the grid covers
    rows: int  # rows of the grid
    columns: int  # columns of the grid
    # [R, R] similarity f(x_i, x_j) of the positions i (row) and j (column)
    similarities: np.ndarray
    # for each position, the positions that its arrows point to, the most similar first
    targets: Sequence[Sequence[int]]
    chosen: int  # position whose arrows are shown first

    def note(self, position: int) -> str:
        """Return the caption that is shown with the arrows from a position, given by its index."""
        row, column = divmod(position, self.columns)
        values = self.similarities[position, list(self.targets[position])]
        return (
            f"{self.name}: from row {row}, column {column}; f from "
            f"{plain_number(values[0])} to {plain_number(values[-1])}"
        )


def seen_box(identity: Mapping[str, Any], width: int, height: int) -> Box:
    """Return the part of an image (width and height in pixels) that an extractor with these
    attributes of a feature store reads; the whole image if they have no valid ``preprocessing``."""
    try:
        preprocessing = Preprocessing.from_json(str(identity.get("preprocessing", "")))
    except UserError:  # the record of an imported store may be any text
        return WHOLE
    if preprocessing.crop == "none":
        return WHOLE
    if preprocessing.resize == "squash":
        width = height = preprocessing.resize_size
    elif preprocessing.resize == "short":
        # int, not round: torchvision truncates the longer side
        short = min(width, height)
        width, height = (int(preprocessing.resize_size * side / short) for side in (width, height))
    shares = [preprocessing.size / side / 2 for side in (width, height)]
    return Box(0.5 - shares[0], 0.5 - shares[1], 0.5 + shares[0], 0.5 + shares[1])


def arrows_section(drawings: Sequence[Drawing]) -> Section:
    """Return a page section with one figure per drawing, whose arrows change on hover."""
    count = max(len(targets) for drawing in drawings for targets in drawing.targets)
    pairs = [(drawing, _Grid(drawing)) for drawing in drawings]
    heading = "What the non-local block relates"
    return section(heading, "arrows.html", "arrows.js", drawings=pairs, count=count)


class _Grid:
    """Coordinates of a drawing's grid in the SVG, for the template ``arrows.html``."""

    width = _WIDTH

    def __init__(self, drawing: Drawing) -> None:
        self.rows, self.columns = drawing.rows, drawing.columns
        image, box = drawing.image, drawing.box
        if image is None:  # square cells
            self.height, box = round(_WIDTH * self.rows / self.columns), WHOLE
        else:
            self.height = round(_WIDTH * image.height / image.width)
        self.left, self.top = box.left * _WIDTH, box.top * self.height
        self.cell_width = (box.right - box.left) * _WIDTH / self.columns
        self.cell_height = (box.bottom - box.top) * self.height / self.rows
        across = [self.left + (n + 0.5) * self.cell_width for n in range(self.columns)]
        down = [self.top + (n + 0.5) * self.cell_height for n in range(self.rows)]
        self.centers = [(x, y) for y in down for x in across]

    @property
    def outline(self) -> str:
        """SVG path around the grid."""
        right = self.left + self.cell_width * self.columns
        bottom = self.top + self.cell_height * self.rows
        return f"M{self.left:.0f} {self.top:.0f}V{bottom:.0f}H{right:.0f}V{self.top:.0f}Z"

    def arrows(self, position: int, targets: Sequence[int]) -> list[str]:
        """Return the SVG paths of the arrows from a position to each target, the least similar
        first; the path to the position itself is empty."""
        size = min(self.cell_width, self.cell_height)
        paths = []
        # the least similar first: SVG draws later paths over earlier ones
        for rank in reversed(range(len(targets))):
            width = size * 0.13 * (1 - 0.6 * rank / max(len(targets) - 1, 1))
            ends = self.centers[position], self.centers[targets[rank]]
            paths.append("" if targets[rank] == position else _arrow(*ends, width))
        return paths


def _arrow(start: tuple[float, float], end: tuple[float, float], width: float) -> str:
    """Return the SVG path around an arrow from ``start`` to ``end``, which are points (x, y).

    The arrow's shaft has the width ``width``.
    """
    # an outline, not a line with a marker: its head keeps its proportions at every width
    length = math.hypot(end[0] - start[0], end[1] - start[1])
    along = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    head = min(3.2 * width, 0.6 * length)

    def at(distance: float, aside: float) -> str:
        """Return the point ``distance`` along the arrow and ``aside`` to its side, as text of
        SVG."""
        x = start[0] + along[0] * distance - along[1] * aside
        y = start[1] + along[1] * distance + along[0] * aside
        return f"{x:.0f} {y:.0f}"

    neck, half = length - head, width / 2
    corners = [at(0, half), at(neck, half), at(neck, 3.2 * half), at(length, 0)]
    corners += [at(neck, -3.2 * half), at(neck, -half), at(0, -half)]
    return f"M{'L'.join(corners)}Z"
