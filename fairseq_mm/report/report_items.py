"""Makes the section of a report with one card per image, image sequence or video.

A card has the images, each system's text with its scores, and the references. Words with a visible
error (see :mod:`.text_faults`) are marked. The section has pages of 50 cards, so that 5,000 cards
scroll as fast as a few. Cards can be sorted by a score or by the difference between two systems,
and filtered by words and by errors. Without JavaScript, only the first page is shown.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from fairseq_mm.report.html_page import Section, section
from fairseq_mm.report.readable import label, main_names, readable
from fairseq_mm.report.text_faults import FAULTS, Word, count_faults, find_faults

PAGE_SIZE = 50  # cards


class SystemText(NamedTuple):
    """Text of a system for an image, image sequence or video.

    Attributes:
        words: Words of the text, marked if they are errors; None if the system has no such text.
        scores: Dict from the name of a score to its value for this text.
    """

    words: Optional[Sequence[Word]]
    scores: Mapping[str, float]


class ReportItem(NamedTuple):
    """Image, image sequence or video of a split, with its texts.

    Attributes:
        key: Id of the image or video, or ids of the images of a sequence, separated by tabs.
        texts: Text of each system.
        references: References before tokenization.
        images: Dict from the id of an image to its data URI.
    """

    key: str
    texts: Sequence[SystemText]
    references: Sequence[str]
    images: Mapping[str, str]

    @property
    def faults(self) -> list[str]:
        """Return the kinds of errors (such as ``repeat``) in the systems' texts, each once."""
        found = (word.fault for text in self.texts for word in text.words or () if word.fault)
        return list(dict.fromkeys(found))


def items_section(
    items: Sequence[ReportItem], systems: Sequence[str], *, first_of: Optional[int] = None
) -> Section:
    """Return the page section with one card per image, image sequence or video.

    Args:
        items: Items in the order of the split.
        systems: Name of each system.
        first_of: Number of items of the split if ``items`` is only its beginning, else None.
    """
    names = list(
        dict.fromkeys(name for item in items for text in item.texts for name in text.scores)
    )
    # BLEU of a single caption is 0 for most captions: four words in a row seldom match
    shown = [name for name in names if not name.startswith("bleu")] or names
    orders = _orders(names if len(systems) == 1 else main_names(shown), systems)
    return section(
        "Items",
        "items.html",
        "items.js",
        items=items,
        systems=systems,
        orders=[text for text, _, _ in orders],
        values=[
            _compact([_value(item, name, which) for _, name, which in orders]) for item in items
        ],
        main=main_names(shown),
        faults=_fault_lines(items, systems),
        kinds=FAULTS,
        page_size=PAGE_SIZE,
        first_of=first_of,
        label=label,
        readable=readable,
    )


# a score of system i, or the difference between two systems (i, j)
_Which = tuple[int, ...]


def _orders(names: Sequence[str], systems: Sequence[str]) -> list[tuple[str, str, _Which]]:
    """Return (menu text, score, indices of one or two systems) of each order of the cards."""
    several = len(systems) > 1
    orders: list[tuple[str, str, _Which]] = []
    for name in names:
        for j in range(1, len(systems)):
            text = f"{label(name)}: {systems[j]} \u2212 {systems[0]}"
            orders.append((text, name, (j, 0)))
        for i, system in enumerate(systems):
            orders.append((f"{label(name)}: {system}" if several else label(name), name, (i,)))
    return orders


def _value(item: ReportItem, name: str, which: _Which) -> Optional[float]:
    """Return an item's score, or its difference between two systems; None if it is not finite."""
    values = [item.texts[i].scores.get(name, math.nan) for i in which]
    value = values[0] - values[1] if len(values) == 2 else values[0]
    return value if math.isfinite(value) else None


def _compact(values: Sequence[Optional[float]]) -> str:
    # six digits sort as well as all, and a page has thousands of these lists
    return json.dumps([value and float(f"{value:.6g}") for value in values], separators=(",", ":"))


def _fault_lines(
    items: Sequence[ReportItem], systems: Sequence[str]
) -> dict[str, list[tuple[str, int, int]]]:
    """Return, for each kind of error in the systems' texts, a list (name, number, total).

    The list has an element for each system and for the references: number of texts with the error,
    number of all texts.
    """
    groups = {
        system: [item.texts[i].words or () for item in items if item.texts[i].words is not None]
        for i, system in enumerate(systems)
    }
    counts = {system: count_faults(texts) for system, texts in groups.items()}
    kinds = [kind for kind in FAULTS if any(count[kind] for count in counts.values())]
    references = [find_faults(text) for item in items for text in item.references] if kinds else []
    by_people = count_faults(references)
    return {
        kind: [
            *((system or "texts", counts[system][kind], len(groups[system])) for system in systems),
            *([("references", by_people[kind], len(references))] if references else []),
        ]
        for kind in kinds
    }
