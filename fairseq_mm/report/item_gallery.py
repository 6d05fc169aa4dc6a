"""Items as cards: images, hypothesis, references and scores, to be sorted and filtered.

Without JavaScript all items are shown in the order of the split.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from fairseq_mm.metrics.score_rows import format_figure
from fairseq_mm.report.html_page import Section, section


class Item(NamedTuple):
    """One item of a split.

    Attributes:
        key: Line of ``visual_ids``; several ids are separated by tabs.
        hypothesis: Generated text, or None.
        references: References as published.
        scores: Name -> number.
        images: Id -> data URI.
    """

    key: str
    hypothesis: Optional[str]
    references: Sequence[str] = ()
    scores: Mapping[str, float] = {}
    images: Mapping[str, str] = {}

    @property
    def finite_scores(self) -> dict[str, float]:
        """Those that can be sorted by."""
        return {name: value for name, value in self.scores.items() if math.isfinite(value)}

    @property
    def shown_scores(self) -> dict[str, str]:
        """All scores with the decimals that the page's other figures have."""
        return {name: format_figure(name, x, decimals=4) for name, x in self.scores.items()}

    @property
    def marked_words(self) -> list[tuple[str, bool]]:
        """Words of the hypothesis, and whether none of the references has them."""
        known = {_bare(word) for sentence in self.references for word in sentence.split()}
        return [
            (word, bool(self.references) and bool(_bare(word)) and _bare(word) not in known)
            for word in (self.hypothesis or "").split()
        ]


def gallery_section(
    items: Sequence[Item], *, heading: str, note: str = "", is_sortable: bool = True
) -> Section:
    """Return a section with a card per item, a filter box, and a menu to sort by any score.

    Args:
        items: Items in the order of the split.
        heading: Plain text.
        note: Plain text above the cards.
        is_sortable: False to leave out the filter and the menu; a page can have only one of each.
    """
    names = list(dict.fromkeys(name for item in items for name in item.scores))
    values = {"items": items, "names": names, "note": note, "is_sortable": is_sortable}
    scripts = ["gallery.js"] if is_sortable else []
    return section(heading, "gallery.html", *scripts, **values, dumps=json.dumps)


def _bare(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())
