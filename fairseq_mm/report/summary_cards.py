"""Summaries of videos as cards: frames, summary, what was said and how much of it was read."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from fairseq_mm.report.html_page import Section, section
from fairseq_mm.report.thumbnails import jpeg_uri


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
    shown = [
        (card, [jpeg_uri(Image.fromarray(pixels)) for pixels in card.images]) for card in cards
    ]
    return section("", "summary_cards.html", cards=shown)
