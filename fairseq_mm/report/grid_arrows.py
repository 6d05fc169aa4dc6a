"""What a non-local block relates, as a section of a page: arrows over each image from one
position of its grid to those most similar to it (Li et al. 2020, Transtory-XL, Figure 4).

Pointing at another cell shows its arrows; a click keeps them.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, Optional

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.report.html_page import Section
from fairseq_mm.report.visual_story_attention import EmbeddedImage

_WIDTH = 1000  # of a drawing, in its own units

_STYLE = """
.arrows { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem;
  margin: .75rem 0 1.5rem; }
.arrows figure { margin: 0; background: var(--card); border: 1px solid var(--line);
  border-radius: .75rem; padding: .625rem; box-shadow: 0 1px 3px rgb(0 0 0 / .06);
  max-width: 40rem; }
.arrows .photo { border-radius: .375rem; overflow: hidden; background: center / 100% 100% no-repeat;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.arrows .boxed { box-shadow: inset 0 0 0 1px var(--line); }
.arrows svg { display: block; width: 100%; height: auto; }
.arrows .veil { fill: #0d1117; fill-opacity: .55; }
.arrows .cell { fill: transparent; stroke: #fff; stroke-opacity: .35; stroke-width: 2;
  cursor: pointer; }
.arrows .boxed .cell { stroke: var(--quiet); }
.arrows .cell:hover { fill: #fff; fill-opacity: .25; }
.arrows g { display: none; pointer-events: none; }
.arrows g.chosen { display: inline; }
.arrows svg.trying g.chosen { display: none; } .arrows svg.trying g.tried { display: inline; }
.arrows path.to { fill: #ff5a1f; stroke: #fff; stroke-width: 7; stroke-linejoin: round;
  paint-order: stroke; }
.arrows .from { fill: #fff; stroke: #ff5a1f; stroke-width: 9; }
.arrows .self { fill: none; stroke: #ff5a1f; stroke-width: 9; stroke-dasharray: 14 9; }
.arrows figcaption { font-size: .8125rem; color: var(--quiet); padding: .5rem .25rem 0;
  display: flex; gap: .6rem; align-items: baseline; }
.arrows figcaption b { color: var(--text); font-weight: 600; }
"""

# The arrows of every cell are in the page: this only says which are seen.
_SCRIPT = """
document.querySelectorAll('.arrows svg').forEach(function (svg) {
  var note = svg.closest('figure').querySelector('span');
  function of(event) {
    var cell = event.target.getAttribute('data-cell');
    return cell === null ? null : svg.querySelector('g[data-from="' + cell + '"]');
  }
  function mark(name, group) {
    svg.querySelectorAll('g.' + name).forEach(function (g) { g.classList.remove(name); });
    if (group) group.classList.add(name);
    svg.classList.toggle('trying', svg.querySelector('g.tried') !== null);
    var shown = svg.querySelector('g.tried') || svg.querySelector('g.chosen');
    note.textContent = shown.getAttribute('data-note');
  }
  svg.addEventListener('pointerover', function (event) { mark('tried', of(event)); });
  svg.addEventListener('pointerleave', function () { mark('tried', null); });
  svg.addEventListener('click', function (event) {
    var group = of(event);
    if (group) { mark('chosen', group); mark('tried', null); }
  });
});
"""


class Box(NamedTuple):
    """A part of an image, in shares of its width and height; beyond 0 and 1 it is padding."""

    left: float
    top: float
    right: float
    bottom: float


WHOLE = Box(0.0, 0.0, 1.0, 1.0)


class Drawing(NamedTuple):
    """An image with the similarities of its grid's positions.

    Attributes:
        place: of the image in the story, from 0.
        name: plain text.
        image: None if it is not shown.
        box: what of it the grid covers.
        rows: of the grid.
        columns: likewise.
        similarities: ``[R, R]`` f(x_i, x_j).
        targets: for each position those that its arrows point to, the most similar first.
        chosen: the position whose arrows are shown first.
    """

    place: int
    name: str
    image: Optional[EmbeddedImage]
    box: Box
    rows: int
    columns: int
    similarities: np.ndarray
    targets: Sequence[Sequence[int]]
    chosen: int


def seen_box(identity: Mapping[str, Any], width: int, height: int) -> Box:
    """What an extractor sees of an image of so many pixels.

    Args:
        identity: of the extractor; where no preprocessing is recorded it is the whole image.
        width: of the image.
        height: likewise.
    """
    try:
        preprocessing = Preprocessing.from_json(str(identity.get("preprocessing", "")))
    except UserError:  # of an imported store it may be any text
        return WHOLE
    if preprocessing.crop == "none":
        return WHOLE
    if preprocessing.resize == "squash":
        width = height = preprocessing.resize_size
    elif preprocessing.resize == "short":
        short = min(width, height)
        width, height = (int(preprocessing.resize_size * side / short) for side in (width, height))
    shares = [preprocessing.size / side / 2 for side in (width, height)]
    return Box(0.5 - shares[0], 0.5 - shares[1], 0.5 + shares[0], 0.5 + shares[1])


def arrows_section(drawings: Sequence[Drawing], *, heading: str = "") -> Section:
    """
    Args:
        drawings: a figure each.
        heading: plain text.
    """
    count = max(len(targets) for drawing in drawings for targets in drawing.targets)
    note = (
        f'<p class="quiet">Arrows point from the dot to the {count} positions j of the greatest '
        "f(x_i, x_j), the thickest to the greatest of all; a dashed ring is an arrow from the dot "
        "to itself. Point at another cell to see its own, click to keep them. What is dark was cut "
        "off before the network saw the image.</p>"
    )
    body = "".join(map(_figure, drawings))
    return Section(heading, f'{note}<div class="arrows">{body}</div>', _STYLE, _SCRIPT)


def _figure(drawing: Drawing) -> str:
    image = drawing.image
    if image is None:
        height = round(_WIDTH * drawing.rows / drawing.columns)
        shown = '<div class="photo boxed">'
    else:
        height = round(_WIDTH * image.height / image.width)
        shown = f'<div class="photo" style="background-image:var(--image{drawing.place + 1})">'
    grid = _Grid(drawing, height)
    groups = "".join(_group(drawing, grid, position) for position in range(len(drawing.targets)))
    return (
        f'<figure>{shown}<svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="image {drawing.place + 1}">{grid.veil()}{grid.cells()}{groups}</svg></div>'
        f"<figcaption><b>{drawing.place + 1}</b>"
        f"<span>{_note(drawing, drawing.chosen)}</span></figcaption></figure>"
    )


def _note(drawing: Drawing, position: int) -> str:
    row, column = divmod(position, drawing.columns)
    values = drawing.similarities[position, list(drawing.targets[position])]
    return escape(
        f"{drawing.name}: from row {row}, column {column}; f from {values[0]:.3g} to "
        f"{values[-1]:.3g}"
    )


class _Grid:
    """Where the positions lie in a drawing."""

    def __init__(self, drawing: Drawing, height: int) -> None:
        self.height = height
        self.rows, self.columns = drawing.rows, drawing.columns
        box = drawing.box if drawing.image is not None else WHOLE
        self.left, self.top = box.left * _WIDTH, box.top * height
        self.cell_width = (box.right - box.left) * _WIDTH / self.columns
        self.cell_height = (box.bottom - box.top) * height / self.rows

    def center(self, position: int) -> tuple[float, float]:
        row, column = divmod(position, self.columns)
        return (
            self.left + (column + 0.5) * self.cell_width,
            self.top + (row + 0.5) * self.cell_height,
        )

    def veil(self) -> str:
        right = self.left + self.cell_width * self.columns
        bottom = self.top + self.cell_height * self.rows
        inner = f"M{self.left:.0f} {self.top:.0f}V{bottom:.0f}H{right:.0f}V{self.top:.0f}Z"
        return f'<path class="veil" fill-rule="evenodd" d="M0 0H{_WIDTH}V{self.height}H0Z{inner}"/>'

    def cells(self) -> str:
        cells = []
        for position in range(self.rows * self.columns):
            x, y = self.center(position)
            cells.append(
                f'<rect class="cell" data-cell="{position}" x="{x - self.cell_width / 2:.0f}" '
                f'y="{y - self.cell_height / 2:.0f}" width="{self.cell_width:.0f}" '
                f'height="{self.cell_height:.0f}"/>'
            )
        return "".join(cells)


def _group(drawing: Drawing, grid: _Grid, position: int) -> str:
    """The arrows of one position, the least similar at the bottom."""
    size = min(grid.cell_width, grid.cell_height)
    targets = drawing.targets[position]
    parts = []
    for rank in reversed(range(len(targets))):
        if targets[rank] == position:
            x, y = grid.center(position)
            parts.append(f'<circle class="self" cx="{x:.0f}" cy="{y:.0f}" r="{size * 0.36:.0f}"/>')
            continue
        strength = 1 - 0.6 * rank / max(len(targets) - 1, 1)
        path = _arrow(grid.center(position), grid.center(targets[rank]), size * 0.13 * strength)
        parts.append(f'<path class="to" d="{path}"/>')
    x, y = grid.center(position)
    parts.append(f'<circle class="from" cx="{x:.0f}" cy="{y:.0f}" r="{size * 0.15:.0f}"/>')
    kind = ' class="chosen"' if position == drawing.chosen else ""
    return (
        f'<g{kind} data-from="{position}" data-note="{_note(drawing, position)}">'
        f"{''.join(parts)}</g>"
    )


def _arrow(start: tuple[float, float], end: tuple[float, float], width: float) -> str:
    """Outline of an arrow whose shaft is so wide."""
    length = math.hypot(end[0] - start[0], end[1] - start[1])
    along = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    head = min(3.2 * width, 0.6 * length)

    def at(distance: float, aside: float) -> str:
        x = start[0] + along[0] * distance - along[1] * aside
        y = start[1] + along[1] * distance + along[0] * aside
        return f"{x:.0f} {y:.0f}"

    neck, half = length - head, width / 2
    corners = [at(0, half), at(neck, half), at(neck, 3.2 * half), at(length, 0)]
    corners += [at(neck, -3.2 * half), at(neck, -half), at(0, -half)]
    return f"M{'L'.join(corners)}Z"
