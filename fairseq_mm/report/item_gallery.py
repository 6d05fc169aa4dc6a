"""Makes page sections with one card per image, image sequence or video."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from fairseq_mm.metrics.score_rows import format_figure
from fairseq_mm.report.html_page import Section, section


class ItemText(NamedTuple):
    """Text of one item on the page, and its scores."""

    text: Optional[str]  # the text; None for scores without a text
    scores: Mapping[str, float] = {}  # dict from the name of a score to its value
    system: str = ""  # name of the system that wrote the text; empty for a single system

    @property
    def shown_scores(self) -> dict[str, str]:
        return {
            name: str(x) if isinstance(x, int) else format_figure(name, x, decimals=4)
            for name, x in self.scores.items()
        }


class Item(NamedTuple):
    """Image, image sequence or video with its texts."""

    key: str  # id of the image or video, or ids of the sequence's images, separated by tabs
    texts: Sequence[ItemText] = ()  # text of each system
    images: Mapping[str, str] = {}  # dict from the id of an image to its data URI
    # dict from the id of an image to the URL that a click on the image opens
    links: Mapping[str, str] = {}
    references: Sequence[str] = ()  # texts that people wrote
    transcript: str = ""  # text that a click on the card shows


def gallery_section(
    items: Sequence[Item], *, heading: str, note: str = "", sortable: bool = False
) -> Section:
    """Return a page section with one card per item; ``sortable`` adds a bar that filters the cards
    by words, and sorts them by a score or by the difference between two systems."""
    scores = dict.fromkeys(x for item in items for text in item.texts for x in text.scores)
    systems = [text.system for text in items[0].texts] if items else []
    orders: list[Any] = [(name, i, None) for name in scores for i in range(len(systems))]
    if len(systems) > 1:
        orders += [(name, i, 0) for name in scores for i in range(1, len(systems))]
    return section(
        heading,
        "items.html",
        *(["items.js"] if sortable else []),
        items=items,
        note=note,
        sortable=sortable,
        several=len(systems) > 1,
        orders=[
            f"{name} {systems[i]}" + ("" if j is None else f" \u2212 {systems[j]}")
            for name, i, j in orders
        ],
        numbers=[json.dumps([_number(item, *order) for order in orders]) for item in items],
    )


def _number(item: Item, name: str, i: int, j: Optional[int]) -> Optional[float]:
    values: list[Any] = [item.texts[k].scores.get(name) for k in (i, j) if k is not None]
    if None in values:
        return None
    return round(values[0] - sum(values[1:]), 6)
