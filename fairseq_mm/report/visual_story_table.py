"""Visual stories: the images side by side, and under each its sentence of every story.

One story reads as a strip of images. Several of the same images, by different systems and by
people, are the table of Figure 6 of Li et al. 2020, Transtory-XL (section 5.3): a row a system, a
column a sentence.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple, Optional

from fairseq_mm.report.html_page import Section

_STYLE = """
.strip { background: var(--card); border: 1px solid var(--line); border-radius: .75rem;
  margin: 1rem 0 1.5rem; overflow-x: auto; box-shadow: 0 1px 3px rgb(0 0 0 / .06); }
.strip header { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: baseline;
  padding: .75rem 1.25rem 0; position: sticky; left: 0; }
.strip header b { font-weight: 600; overflow-wrap: anywhere; }
.strip table { table-layout: fixed; width: 100%; min-width: 46rem; border-collapse: separate;
  border-spacing: 0; font-size: 1rem; padding: .25rem .75rem .75rem; }
.strip col.name { width: 9rem; }
.strip th, .strip td { padding: .625rem .5rem; }
.strip thead th { vertical-align: bottom; }
.strip figure { margin: 0; position: relative; }
.strip img { display: block; width: 100%; height: auto; max-height: 16rem; object-fit: contain;
  object-position: left bottom; border-radius: .25rem; }
.strip .absent { display: flex; align-items: center; justify-content: center; padding: .75rem;
  aspect-ratio: 4 / 3; border-radius: .375rem; border: 1px dashed var(--line); font-weight: 400;
  font-size: .75rem; overflow-wrap: anywhere; text-align: center; }
.strip.bare .absent { aspect-ratio: auto; padding: .5rem .5rem .5rem 2rem; min-height: 2.25rem; }
.strip figcaption { position: absolute; left: .4rem; top: .4rem; width: 1.5rem; height: 1.5rem;
  border-radius: 50%; text-align: center; line-height: 1.5rem; font-size: .8125rem;
  font-weight: 600; color: var(--text); background: var(--card); opacity: .88; }
.strip td { font: 1.125rem/1.45 Charter, "Bitstream Charter", Georgia, "DejaVu Serif", serif;
  overflow-wrap: break-word; hyphens: auto; }
.strip tbody th { font-size: .875rem; font-weight: 600; color: var(--accent); line-height: 1.5;
  padding-top: .8rem; overflow-wrap: anywhere; }
.strip tbody th small { display: block; font-weight: 400; color: var(--quiet); }
.strip.several td { font-size: 1rem; }
.strip.several tbody td, .strip.several tbody th { border-top: 1px solid var(--line); }
.strip .people th { color: var(--second); } .strip .people td { color: var(--quiet); }
"""


class Telling(NamedTuple):
    """A row of the table.

    Attributes:
        name: of the system, or what people's stories are called; empty for a story alone.
        sentences: as people read them, one an image.
        note: plain text under the name.
        by_people: written by people.
    """

    name: str
    sentences: Sequence[str]
    note: str = ""
    by_people: bool = False


class Strip(NamedTuple):
    """Images and their stories.

    Attributes:
        title: plain text.
        keys: names of the images.
        images: their data URIs; None where there is none to show.
        tellings: at least one.
        note: plain text beside the title.
    """

    title: str
    keys: Sequence[str]
    images: Sequence[Optional[str]]
    tellings: Sequence[Telling]
    note: str = ""


def stories_section(strips: Sequence[Strip], *, heading: str = "") -> Section:
    """The strips, one below the other.

    Args:
        strips: in the order of the page.
        heading: plain text.
    """
    return Section(heading, "\n".join(map(_strip, strips)), _STYLE)


def _strip(strip: Strip) -> str:
    has_names = any(telling.name for telling in strip.tellings)
    kind = "strip several" if len(strip.tellings) > 1 else "strip"
    if not any(strip.images):
        kind += " bare"
    title = f"<b>{escape(strip.title)}</b>" if strip.title else ""
    note = f'<span class="quiet">{escape(strip.note)}</span>' if strip.note else ""
    heads = "".join(
        f'<th scope="col">{_image(number, key, uri)}</th>'
        for number, (key, uri) in enumerate(zip(strip.keys, strip.images), start=1)
    )
    columns = '<col class="name">' if has_names else ""
    corner = "<td></td>" if has_names else ""
    rows = "".join(_row(telling, has_name=has_names) for telling in strip.tellings)
    return (
        f'<article class="{kind}">'
        + (f"<header>{title}{note}</header>" if title or note else "")
        + f"<table><colgroup>{columns}{'<col>' * len(strip.keys)}</colgroup>"
        f"<thead><tr>{corner}{heads}</tr></thead><tbody>{rows}</tbody></table></article>"
    )


def _image(number: int, key: str, uri: Optional[str]) -> str:
    if uri is None:
        shown = f'<div class="absent quiet">{escape(key)}</div>'
    else:
        shown = f'<img src="{escape(uri)}" alt="{escape(key)}" title="{escape(key)}">'
    return f"<figure>{shown}<figcaption>{number}</figcaption></figure>"


def _row(telling: Telling, *, has_name: bool) -> str:
    note = f"<small>{escape(telling.note)}</small>" if telling.note else ""
    name = f'<th scope="row">{escape(telling.name)}{note}</th>' if has_name else ""
    cells = "".join(f"<td>{escape(sentence)}</td>" for sentence in telling.sentences)
    return f"<tr{' class=people' if telling.by_people else ''}>{name}{cells}</tr>"
