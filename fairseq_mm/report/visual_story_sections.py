"""Shows visual stories as sections of a page (Li et al. 2020, Transtory-XL).

A table shows the images side by side. Each row below has one story, with the sentence of an image
below that image (Figure 6 there). Heat maps show the attention of each word to the five images
(Figure 5 there), or to the slices of an image: vectors that are computed from its feature vector.
Arrows over an image show which positions of its feature grid a non-local block relates (Figure 4
there): from one position to the most similar ones; hovering or a click chooses another position.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.report.html_page import Section, plain_number, section

_LINE = 104  # width of a line of words, in letters
_LEAST = 5  # width of the column of a short word, in letters


class EmbeddedImage(NamedTuple):
    """Image that is part of a page."""

    uri: str  # data URI of a small JPEG
    width: int  # width of the original image in pixels
    height: int  # height of the original image in pixels


class StoryRow(NamedTuple):
    """Story, a row of a table whose columns are images."""

    name: str  # name of the system that wrote the story; empty if the table has a single story
    sentences: Sequence[str]  # detokenized sentences, one per image
    note: str = ""  # plain text beside the sentences
    by_people: bool = False  # True for a story that people wrote


class Strip(NamedTuple):
    """Table of one image sequence and its stories."""

    title: str  # title of the table, plain text
    keys: Sequence[str]  # names of the images
    images: Sequence[Optional[str]]  # data URIs of the images; None for an image that is not shown
    rows: Sequence[StoryRow]  # stories, at least one; each is a row of the table


def stories_section(strips: Sequence[Strip]) -> Section:
    """Return a page section with one table per image sequence (``strips``), one below the other."""
    return section("", "visual_stories.html", strips=strips)


class SentenceAttention(NamedTuple):
    """Sentence of W words and the attention of each word; the sentence's end counts as a word."""

    text: str  # detokenized sentence
    words: Sequence[str]  # W words; the last is ``<sent>`` or ``</s>``
    # [W] False to underline the word, because the dictionary does not contain it
    is_known: Sequence[bool]
    log_probs: np.ndarray  # [W] natural logarithms of the words' probabilities
    # [W, N] attention weights of the N images, or of the N slices of an image's vector
    weights: np.ndarray


def attention_section(
    sentences: Sequence[SentenceAttention],
    images: Sequence[Optional[EmbeddedImage]],
    *,
    image_padding_mask: Optional[Sequence[bool]] = None,
) -> Section:
    """Return a page section with each word's attention to the images (``image_padding_mask`` is
    True at missing ones) or, if the mask is None, to the slices of its image's vector."""
    heading = "Attention to the images"
    note = (
        "Per cent of a word's attention that an image gets, where the word is written (mean over "
        "heads, last layer). A blue frame marks the image of the sentence, dotted "
        "underlines words that are not in the dictionary."
    )
    if image_padding_mask is None:
        heading = "Attention to the slices of an image's vector"
        note = (
            "Per cent of a word's attention that a slice of its image's vector gets. The first "
            "word of a sentence attends to all alike; dotted underlines mark words that are not in "
            "the dictionary."
        )
    return section(
        heading,
        "image_attention.html",
        sentences=sentences,
        images=images,
        note=note,
        of_images=image_padding_mask is not None,
        image_padding_mask=image_padding_mask,
        # one scale of colours for all sentences, so that they can be compared
        strongest=max(float(sentence.weights.max()) for sentence in sentences),
        # a template cannot import functions
        lines_of_words=break_into_lines,
        exp=np.exp,
    )


def break_into_lines(words: Sequence[str]) -> list[range]:
    """Break words into lines that fit the page's width; return the words' indices in each line."""
    # lines are broken here because each has its own table, with a row per image
    lines, start, width = [], 0, 0
    for t, word in enumerate(words):
        letters = max(len(word), _LEAST) + 1
        if width + letters > _LINE and t > start:  # a word beyond the width has its own line
            lines.append(range(start, t))
            start, width = t, 0
        width += letters
    return [*lines, range(start, len(words))]


def story_section(
    title: str, images: Sequence[Optional[EmbeddedImage]], parts: Sequence[Section]
) -> Section:
    """Join the parts of one visual story to one section that contains each image's data only
    once."""
    # a data URI is long: each image is in the page once, as a variable of the style sheet
    scripts = dict.fromkeys(name for part in parts for name in part.scripts)
    return section(title, "story_parts.html", *scripts, images=images, parts=parts)


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
        """Return the caption below the arrows from a grid position, given by its index."""
        row, column = divmod(position, self.columns)
        values = self.similarities[position, list(self.targets[position])]
        return (
            f"{self.name}: from row {row}, column {column}; f from "
            f"{plain_number(values[0])} to {plain_number(values[-1])}"
        )


def seen_box(identity: Mapping[str, Any], width: int, height: int) -> Box:
    """Return the part of an image (width and height in pixels) that the extractor with the
    attributes ``identity`` reads; the whole image if these have no valid ``preprocessing``."""
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
    """Coordinates of a drawing's grid in an SVG, for the template ``arrows.html``."""

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
        """Return, as SVG text, the point ``distance`` along the arrow and ``aside`` to its side."""
        x = start[0] + along[0] * distance - along[1] * aside
        y = start[1] + along[1] * distance + along[0] * aside
        return f"{x:.0f} {y:.0f}"

    neck, half = length - head, width / 2
    corners = [at(0, half), at(neck, half), at(neck, 3.2 * half), at(length, 0)]
    corners += [at(neck, -3.2 * half), at(neck, -half), at(0, -half)]
    return f"M{'L'.join(corners)}Z"
