"""Figures of matplotlib as inline SVG: the same bytes whenever they are drawn, text as text, and
the page's colours, which follow a dark page."""

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional
from xml.etree import ElementTree

from fairseq_mm.errors import import_extra

# colours of templates/page.css on a light page
COLORS = {
    "text": "#1b1f24",
    "quiet": "#5c6673",
    "line": "#d9dee5",
    "accent": "#1f6feb",
    "second": "#c2410c",
}
_SETTINGS = {
    "svg.hashsalt": "fairseq_mm",
    "svg.fonttype": "none",
    "font.size": 9,
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
# id of an artist -> a title for each of its marks, shown when it is pointed at
Titles = Mapping[str, Sequence[str]]


def draw(
    plot: Callable[[Any], Optional[Titles]],
    width: float,
    height: float,
    label: Optional[str] = None,
) -> str:
    """Draw a figure as an ``<svg>`` element.

    Args:
        plot: Function that draws onto matplotlib's axes and returns the titles.
        width: Width in inches of 72 pixels.
        height: Height in inches of 72 pixels.
        label: Description of the figure for screen readers; None for a file of its own.

    Raises:
        UserError: if matplotlib is missing.
    """
    matplotlib = import_extra("matplotlib", extra="report", purpose="a figure")
    from matplotlib import style
    from matplotlib.figure import Figure

    with warnings.catch_warnings(), style.context("default"), matplotlib.rc_context(_SETTINGS):
        warnings.simplefilter("ignore")  # letters that are only measured, not drawn here
        figure = Figure(figsize=(width, height), dpi=72, layout="constrained")
        axes = figure.subplots()
        if label is not None:  # the page's own ground is seen through
            figure.set_facecolor("none")
            axes.set_facecolor("none")
        titles = plot(axes) or {}
        stream = io.BytesIO()
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
    """Remove namespaces and metadata, which HTML does not need, and replace ``colors`` by the
    page's names.
    """
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for name in [name for name in element.attrib if "}" in name]:
            element.set(name.rpartition("}")[2], element.attrib.pop(name))
        if "style" in element.attrib:
            for name, color in colors.items():
                element.set("style", element.get("style").replace(color, f"var(--{name})"))
        if element.tag == "style":
            element.text = f"svg {element.text}"
    for metadata in root.findall("metadata"):
        root.remove(metadata)


def _add_titles(root: ElementTree.Element, titles: Titles) -> None:
    groups = {element.get("id"): element for element in root.iter()}
    for name, of_marks in titles.items():
        for kind in ("use", "image", "path"):
            marks = list(groups[name].iter(kind))
            if marks:
                break
        for mark, title in zip(marks, of_marks):
            ElementTree.SubElement(mark, "title").text = title
