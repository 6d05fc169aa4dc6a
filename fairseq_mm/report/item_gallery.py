"""Makes sections of a page that show one card per image, with hypothesis, references and scores, or
one card per video, with its summary.

Cards of images can be sorted and filtered if JavaScript runs, and else have the order of the split.
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
        key: Id of the image, or ids of the sequence's images, separated by tabs.
        hypothesis: Generated text; None if no text was generated.
        references: References before tokenization.
        scores: Dict from the name of a metric to the score of the hypothesis.
        images: Dict from the id of an image to its data URI.
        links: Dict from the id of an image to the URL that a click on the image opens.
    """

    key: str
    hypothesis: Optional[str]
    references: Sequence[str] = ()
    scores: Mapping[str, float] = {}
    images: Mapping[str, str] = {}
    links: Mapping[str, str] = {}

    @property
    def finite_scores(self) -> dict[str, float]:
        """Return the scores that are finite numbers, by which items can be sorted."""
        return {name: value for name, value in self.scores.items() if math.isfinite(value)}

    @property
    def shown_scores(self) -> dict[str, str]:
        """Return a dict from the name of each score, finite or not, to its formatted value."""
        return {name: format_figure(name, x, decimals=4) for name, x in self.scores.items()}

    @property
    def marked_words(self) -> list[tuple[str, bool]]:
        """Return (word, is novel) for each word of the hypothesis.

        A word is novel if no reference contains it. Without references, no word is novel.
        """
        # case and punctuation do not make a word novel: hypotheses are lower-cased tokens
        known = {_bare(word) for sentence in self.references for word in sentence.split()}
        return [
            (word, bool(self.references) and bool(_bare(word)) and _bare(word) not in known)
            for word in (self.hypothesis or "").split()
        ]


def gallery_section(
    items: Sequence[Item], *, heading: str, note: str = "", is_sortable: bool = True
) -> Section:
    """Return a page section: a card per item, a filter, and a menu to sort the cards by a score.

    Args:
        items: Items in the order of the split.
        heading: Heading of the section, plain text.
        note: Plain text above the cards.
        is_sortable: True to add the filter and the menu, of which a page can have only one.
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
