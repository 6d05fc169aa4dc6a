"""Makes page sections of cards: one per image with text and scores, or one per video's summary."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

import numpy as np
from PIL import Image

from fairseq_mm.metrics.score_rows import format_figure
from fairseq_mm.report.html_page import Section, section
from fairseq_mm.report.thumbnails import jpeg_uri


class Item(NamedTuple):
    """Image, or image sequence, with a text and scores.

    Attributes:
        key: Id of the image, or ids of the sequence's images, separated by tabs.
        text: Text; None for an image without text.
        scores: Dict from the name of a score to its value.
        images: Dict from the id of an image to its data URI.
        links: Dict from the id of an image to the URL that a click on the image opens.
    """

    key: str
    text: Optional[str]
    scores: Mapping[str, float] = {}
    images: Mapping[str, str] = {}
    links: Mapping[str, str] = {}

    @property
    def shown_scores(self) -> dict[str, str]:
        """Return a dict from the name of each score to its formatted value."""
        return {name: format_figure(name, x, decimals=4) for name, x in self.scores.items()}


def gallery_section(items: Sequence[Item], *, heading: str, note: str = "") -> Section:
    """Return a page section with a card per image or image sequence.

    ``heading`` and ``note``, a text above the cards, are plain text.
    """
    return section(heading, "gallery.html", items=items, note=note)


class SummaryCard(NamedTuple):
    """Card of one video.

    Attributes:
        name: Name of the video.
        summary: Detokenized summary.
        transcript: Transcript of the video.
        facts: Names and values that the card lists, such as the score of the summary.
        images: Frames, each [height, width, 3].
    """

    name: str
    summary: str
    transcript: str
    facts: Mapping[str, object]
    images: Sequence[np.ndarray] = ()


def cards_section(cards: Sequence[SummaryCard]) -> Section:
    """Return a page section with one card per video; a click on a card opens its transcript."""
    shown = [
        (card, [jpeg_uri(Image.fromarray(pixels)) for pixels in card.images]) for card in cards
    ]
    return section("", "summary_cards.html", cards=shown)
