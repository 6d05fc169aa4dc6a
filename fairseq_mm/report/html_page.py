"""Makes HTML pages: sections in one file that loads no other file.

The other modules of this package make sections from the templates in ``templates/``, and
``render_page`` puts them into a page. Values in templates are escaped.
"""

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairseq_mm.data.output_file import output_file
from fairseq_mm.errors import import_extra

_TEMPLATES = Path(__file__).parent / "templates"


class Section(NamedTuple):
    """Section of a page."""

    heading: str  # plain text; empty for a section without a heading
    body: str  # HTML with escaped values
    # names of scripts in ``templates/`` that run after the page is built
    scripts: tuple[str, ...] = ()
    is_folded: bool = False  # True to show only the heading until it is clicked


def plain_number(value: float) -> str:
    """Format a number with three significant digits; larger integer parts keep all their digits.

    Examples are ``0.00001``, ``23.4`` and ``1652``. Only numbers below 1e-9 have an exponent.
    """
    # below 1e-9, zeros would fill a line: a number as small is shown with an exponent
    if not np.isfinite(value) or 0 < abs(value) < 1e-9:
        return f"{value:.3g}"
    digits = max(3, len(f"{abs(value):.0f}"))
    return np.format_float_positional(value, precision=digits, fractional=False, trim="-")


def section(heading: str, template: str, *scripts: str, **values: Any) -> Section:
    """Build a section from a template in ``templates/`` (or at an absolute path), with the names of
    the scripts that it needs and the values of its variables."""
    return Section(heading, render(template, **values), scripts)


def render(template: str, **values: Any) -> str:
    """Return the HTML of a template, in which all values are escaped."""
    return _environment().get_template(template).render(**values)


def render_page(title: str, sections: Iterable[Section], *, subtitle: str = "") -> str:
    """Return the HTML document with these sections, from top to bottom."""
    sections = list(sections)
    # each script once, in the order of the sections: dict.fromkeys keeps it
    scripts = dict.fromkeys(name for part in sections for name in part.scripts)
    return render("page.html", title=title, subtitle=subtitle, sections=sections, scripts=scripts)


def write_page(path: Path, page: str) -> None:
    """Write the HTML document ``page`` to a file, which appears only when it is complete."""
    # a lone surrogate, which broken JSON may contain, cannot be encoded in UTF-8
    with output_file(path, errors="replace") as file:
        file.write(page)


@functools.lru_cache(maxsize=1)
def _environment() -> Any:
    # StrictUndefined: a misspelt name in a template fails instead of showing nothing
    jinja2 = import_extra("jinja2", extra="report", purpose="an HTML page")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.globals["zip"] = zip
    environment.filters["plain"] = plain_number
    return environment


def _source(name: str) -> str:
    """Read a file in ``templates/``; in HTML, remove white space between elements."""
    # browsers show white space between inline elements, and a page has thousands of such elements
    text = (_TEMPLATES / name).read_text(encoding="utf-8")
    if not name.endswith(".html"):
        return text
    text = re.sub(r"(?<=>)\n\s*|(?<=%\})\n\s*|\n\s*(?=<|\{%)", "", text)
    return re.sub(r"\n\s*", " ", text)
