"""Cards of a page: images with hypothesis, references and scores, or videos with their summaries.

Cards of images can be sorted and filtered. Without JavaScript they have the order of the split.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

import numpy as np
from PIL import Image

from fairseq_mm.metrics.score_rows import format_figure
from fairseq_mm.report.html_page import Section, section
from fairseq_mm.report.thumbnails import jpeg_uri


class Item(NamedTuple):
    """Image, or image sequence, of a split with its texts and scores.

    Attributes:
        key: Line of the split's file ``visual_ids``; ids of several images are separated by tabs.
        hypothesis: Generated text; None if there is no text for the item.
        references: References before tokenization.
        scores: Name of a metric -> number.
        images: Id of an image -> data URI.
    """

    key: str
    hypothesis: Optional[str]
    references: Sequence[str] = ()
    scores: Mapping[str, float] = {}
    images: Mapping[str, str] = {}

    @property
    def finite_scores(self) -> dict[str, float]:
        """Return the scores that are finite numbers, by which items can be sorted."""
        return {name: value for name, value in self.scores.items() if math.isfinite(value)}

    @property
    def shown_scores(self) -> dict[str, str]:
        """Return all scores as text, formatted like the other numbers of the page."""
        return {name: format_figure(name, x, decimals=4) for name, x in self.scores.items()}

    @property
    def marked_words(self) -> list[tuple[str, bool]]:
        """Return each word of the hypothesis, with True if there are references and none has it."""
        # case and punctuation do not make a word novel: hypotheses are lower-cased tokens
        known = {_bare(word) for sentence in self.references for word in sentence.split()}
        return [
            (word, bool(self.references) and bool(_bare(word)) and _bare(word) not in known)
            for word in (self.hypothesis or "").split()
        ]


def gallery_section(
    items: Sequence[Item], *, heading: str, note: str = "", is_sortable: bool = True
) -> Section:
    """Return a section with a card per item, and a filter and a menu to sort the cards by a score.

    Args:
        items: Items in the order of the split.
        heading: Heading of the section, plain text.
        note: Plain text above the cards.
        is_sortable: True to add the filter and the menu, which only one section of a page can have.
    """
    names = list(dict.fromkeys(name for item in items for name in item.scores))
    values = {"items": items, "names": names, "note": note, "is_sortable": is_sortable}
    # the script fails on a page without the menu
    scripts = ["gallery.js"] if is_sortable else []
    # JSON of the scores, which the script sorts by; it has no NaN, see finite_scores
    return section(heading, "gallery.html", *scripts, **values, dumps=json.dumps)


def _bare(word: str) -> str:
    return "".join(filter(str.isalnum, word.lower()))


class SummaryCard(NamedTuple):
    """Card of one video: detokenized summary, numbers by name, [height, width, 3] frames."""

    name: str
    summary: str
    transcript: str
    facts: Mapping[str, object]
    images: Sequence[np.ndarray] = ()


def cards_section(cards: Sequence[SummaryCard]) -> Section:
    """Return a section with one card per video summary, in order; transcripts are collapsed."""
    shown = [
        (card, [jpeg_uri(Image.fromarray(pixels)) for pixels in card.images]) for card in cards
    ]
    return section("", "summary_cards.html", cards=shown)
