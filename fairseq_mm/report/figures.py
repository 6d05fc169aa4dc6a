"""Draws figures with matplotlib: as SVG inside an HTML page, or as SVG files.

The same data always gives the same bytes. Text in a figure can be selected and searched. On a page,
the colours follow the dark mode of the page.
"""

import base64
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from fairseq_mm.errors import import_extra
from fairseq_mm.report.html_page import Section, section

# colours of templates/page.css on a light page
COLORS = {
    "text": "#1b1f24",
    "quiet": "#5c6673",
    "line": "#d9dee5",
    "accent": "#1f6feb",
    "second": "#c2410c",
}
_SETTINGS = {
    # without a salt, matplotlib's ids are random, and a page would differ at every run
    "svg.hashsalt": "fairseq_mm",
    # text as <text>, not as paths: it can be searched, copied and read aloud, and takes less room
    "svg.fonttype": "none",
    "font.size": 9,
    # a $ in a word or an id is no formula
    "text.parse_math": False,
    "text.color": COLORS["quiet"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": COLORS["line"],
    "axes.labelcolor": COLORS["quiet"],
    "axes.titlecolor": COLORS["text"],
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.color": COLORS["line"],
    "xtick.color": COLORS["line"],
    "ytick.color": COLORS["line"],
    "xtick.labelcolor": COLORS["quiet"],
    "ytick.labelcolor": COLORS["quiet"],
    "legend.frameon": False,
}
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
# id of an artist -> text for each of its marks, shown on hover
Titles = Mapping[str, Sequence[str]]


def draw(
    plot: Callable[[Any], Optional[Titles]],
    width: float,
    height: float,
    label: Optional[str] = None,
) -> str:
    """Draw a figure, and return it as the text of an ``<svg>`` element.

    Args:
        plot: Function that draws onto matplotlib's axes. It returns the texts to show on hover, a
            dict from an artist's SVG id to one text per mark; None for no texts.
        width: Width in inches of 72 pixels.
        height: Height in inches of 72 pixels.
        label: Description for screen readers, for a figure in a page; None for an SVG file.
    """
    matplotlib = import_extra("matplotlib", extra="report", purpose="a figure")
    from matplotlib import style
    from matplotlib.figure import Figure

    stream = io.BytesIO()
    # the default style first: a matplotlibrc of the user must not change the figure
    with warnings.catch_warnings(), style.context("default"), matplotlib.rc_context(_SETTINGS):
        # matplotlib warns of letters that its font lacks; in SVG it only measures text, and the
        # browser draws it
        warnings.simplefilter("ignore")
        # not pyplot, which would choose a window system and keep every figure in memory
        figure = Figure(figsize=(width, height), dpi=72, layout="constrained")
        titles = plot(figure.subplots()) or {}
        if label is not None:  # transparent: the page's background may be dark
            figure.set_facecolor("none")
            figure.axes[0].set_facecolor("none")
        figure.savefig(stream, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(stream.getvalue())
    _simplify(root, COLORS if label is not None else {})
    _add_titles(root, titles)
    if label is None:
        root.set("xmlns", "http://www.w3.org/2000/svg")
        return ElementTree.tostring(root, encoding="unicode") + "\n"
    root.set("role", "img")
    root.set("aria-label", label)
    return ElementTree.tostring(root, encoding="unicode")


def _simplify(root: ElementTree.Element, colors: Mapping[str, str]) -> None:
    """Remove namespaces and metadata from an SVG, and replace colours by CSS variables, in
    place."""
    # inside HTML, an SVG has no namespace prefixes: browsers would show nothing of <ns0:svg>
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for name in [name for name in element.attrib if "}" in name]:
            element.set(name.rpartition("}")[2], element.attrib.pop(name))
        if "style" in element.attrib:
            for name, color in colors.items():
                element.set("style", element.attrib["style"].replace(color, f"var(--{name})"))
        if element.tag == "style":
            # matplotlib's rule for all elements (*) would otherwise hold for the whole page
            element.text = f"svg {element.text}"
    for metadata in root.findall("metadata"):
        root.remove(metadata)


def _add_titles(root: ElementTree.Element, titles: Titles) -> None:
    groups = {element.get("id"): element for element in root.iter()}
    for name, texts in titles.items():
        # markers are <use> beside the <path> of their line; bars have only a <path>
        for kind in ("use", "image", "path"):
            marks = list(groups[name].iter(kind))
            if marks:
                break
        for mark, title in zip(marks, texts):
            ElementTree.SubElement(mark, "title").text = title


def recall_chart(title: str, percentages: Any, curves: Mapping[str, Any]) -> str:
    """Return an SVG file of recall against the percentage of retrieved candidates (Mao et al. 2015,
    Figure 4); ``curves`` maps a name to its recall in percent at ``percentages``."""

    def plot(axes: Any) -> None:
        for name, recall in curves.items():
            axes.plot([0, *percentages], [0, *recall], linewidth=2, label=name, gid=name)
        # the diagonal is the expected recall of a random order
        axes.plot([0, 100], [0, 100], "--", color="#999999", linewidth=1)
        axes.set(title=title, xlabel="retrieved, %", ylabel="recall, %")
        axes.set(xlim=(0, 100), ylim=(0, 100))
        axes.grid()
        axes.legend(loc="lower right", labelcolor="linecolor")

    return draw(plot, 6.4, 5)


class PlotPoint(NamedTuple):
    """Word or image at a point of the plane, shown as a dot or as ``image``, a data URI."""

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
