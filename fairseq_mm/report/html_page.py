"""The page itself: sections under one head, in one file that loads nothing.

A section is made by one of this package's other files and put in by ``render_page``; further
kinds of results are further sections.
"""

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import NamedTuple

from fairseq_mm.data.output_file import output_file

# Nothing is fetched, whatever a caption says: images are data URIs, style and script are inline.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

_STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #fff; --text: #1b1f24;
  --quiet: #5c6673; --line: #d9dee5; --accent: #1f6feb; --second: #c2410c; --mark: #fde9b3; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171c; --card: #1d2229; --text: #dde3ea;
  --quiet: #94a0ae; --line: #323a45; --accent: #6cb0ff; --second: #f0945d; --mark: #5c4813; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 84rem; padding: 1.5rem; background: var(--ground);
  color: var(--text); font: 16px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .75rem; }
p { margin: .25rem 0; }
.quiet { color: var(--quiet); font-size: .875rem; }
code, .code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .8125rem;
  overflow-wrap: anywhere; }
table { border-collapse: collapse; font-size: .875rem; }
th, td { padding: .2rem 1rem .2rem 0; text-align: left; vertical-align: top; }
th { color: var(--quiet); font-weight: 500; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--quiet); }
"""


class Section(NamedTuple):
    """A part of the page.

    Attributes:
        heading: plain text; empty for none.
        body: HTML, everything in it escaped already.
        style: CSS that it needs.
        script: JavaScript that it needs, run after the page is built.
    """

    heading: str
    body: str
    style: str = ""
    script: str = ""


def render_page(title: str, sections: Iterable[Section], *, subtitle: str = "") -> str:
    """The whole document.

    Args:
        title: plain text.
        sections: in the order of the page.
        subtitle: plain text under the title.
    """
    sections = list(sections)
    style = _STYLE + "".join(dict.fromkeys(section.style for section in sections))
    script = "".join(dict.fromkeys(section.script for section in sections))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{style}</style></head><body>",
        f"<header><h1>{escape(title)}</h1>",
        f'<p class="quiet">{escape(subtitle)}</p></header>' if subtitle else "</header>",
    ]
    for section in sections:
        heading = f"<h2>{escape(section.heading)}</h2>" if section.heading else ""
        parts.append(f"<section>{heading}{section.body}</section>")
    if script:
        parts.append(f"<script>{script}</script>")
    return "\n".join([*parts, "</body></html>", ""])


def write_page(path: Path, page: str) -> None:
    """Writes ``page`` whole or not at all.

    Raises:
        UserError: if the file cannot be written.
    """
    # a lone surrogate, as broken JSON may hold one, is no UTF-8
    with output_file(path, errors="replace") as file:
        file.write(page)


def key_value_table(rows: Iterable[tuple[str, str]]) -> str:
    """HTML of a table of two columns; all text is escaped."""
    body = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td class="code">{escape(value)}</td></tr>'
        for key, value in rows
    )
    return f"<table>{body}</table>"
