"""Summaries of videos as cards: frames, summary, what was said and how much of it was read."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from PIL import Image

from fairseq_mm.report.html_page import Section
from fairseq_mm.report.thumbnails import jpeg_uri

_STYLE = """
.video { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .75rem; margin-bottom: 1rem; overflow-wrap: anywhere; }
.video .frames { display: flex; gap: .375rem; overflow-x: auto; margin-bottom: .5rem; }
.video img { display: block; height: 7rem; border-radius: .25rem; background: var(--line); }
.video .text { font-size: 1.0625rem; font-weight: 600; }
"""


class SummaryCard(NamedTuple):
    """
    Attributes:
        name: of the video.
        summary: as people read it.
        transcript: what is said.
        facts: name to number.
        images: frames, ``[height, width, 3]`` uint8.
    """

    name: str
    summary: str
    transcript: str
    facts: Mapping[str, object]
    images: Sequence[np.ndarray] = ()


def cards_section(cards: Sequence[SummaryCard]) -> Section:
    """A card of each summary, in their order; the transcript is folded."""
    return Section("", "\n".join(map(_card, cards)), _STYLE)


def _card(card: SummaryCard) -> str:
    frames = "".join(
        f'<img src="{jpeg_uri(Image.fromarray(pixels))}" '
        f'alt="frame {number} of {escape(card.name)}">'
        for number, pixels in enumerate(card.images, start=1)
    )
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in card.facts.items())
    return (
        '<article class="video">'
        + (f'<div class="frames">{frames}</div>' if frames else "")
        + f'<div class="text">{escape(card.summary)}</div>'
        f'<p class="quiet">{escape(card.name)}: {escape(facts)}</p>'
        f"<details><summary>transcript</summary><p>{escape(card.transcript)}</p></details></article>"
    )
