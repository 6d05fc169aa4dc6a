"""Makes the page of ``fairseq-mm retrieve nearest --html``: a query and its results."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.errors import UserError
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.report.html_page import render_page, write_page
from fairseq_mm.report.item_gallery import Item, ItemText, gallery_section
from fairseq_mm.report.thumbnails import Thumbnails, thumbnail_uri

_SIDE = 320  # pixels of an image in the file


class RetrievedPage:
    """Page that shows a query and the images or sentences that were retrieved for it.

    The constructor checks ``--html`` and ``--images``, so that errors are found before the search.

    Args:
        args: Parsed command line of ``fairseq-mm retrieve nearest``.
    """

    def __init__(self, args: argparse.Namespace) -> None:

        arguments.check_writable("--html", args.html)
        self.args = args
        self._thumbnails = Thumbnails(args.images, _SIDE) if args.images else None
        self._missing: list[str] = []

    def write(self, entries: Sequence[Mapping[str, Any]], query_text: Optional[str]) -> None:
        """Write the page.

        Args:
            entries: JSON records of the retrieved items, nearest first.
            query_text: Query sentence; None if the query is an image.
        """
        items = []
        for entry in entries:
            names = ("score", "distance_to_mean")
            scores = {name: entry[name] for name in names if entry.get(name) is not None}
            text = entry.get("text")
            images = self._images(entry["id"]) if text is None else {}
            items.append(Item(entry["id"], [ItemText(text, scores)], images))
        query = self._query_card(query_text)
        shown = [*items, query]
        # A folder may lack some images, but a folder without any image of the page is wrong.
        if self._missing and not any(item.images for item in shown):
            raise UserError(
                f"--images {' '.join(self.args.images)}: has none of the {len(self._missing):,} "
                f"images, such as {self._missing[0]}."
            )
        sections = [
            gallery_section([query], heading="Query"),
            gallery_section(items, heading="Nearest"),
        ]
        searched = self.args.store or f"{self.args.data}, {self.args.split}"
        page = render_page(query.key, sections, subtitle=f"{len(items)} nearest of {searched}")
        write_page(Path(self.args.html), page)
        note = f"wrote {self.args.html}: {len(items):,} items"
        if self._missing:
            note += f"; {len(self._missing):,} images not found, the first is {self._missing[0]}"
        print(note, file=sys.stderr)

    def _query_card(self, text: Optional[str]) -> Any:

        args = self.args
        name = args.text or args.id or os.path.basename(args.image)
        images: dict[str, str] = {}
        if args.image:
            images = {name: thumbnail_uri(MediaFile(name, args.image), _SIDE)}
        elif text is None:
            images = self._images(args.id)
        # U+2212 is the minus sign; a hyphen before a word would look like a dash.
        words = [f"\u2212 {word}" for word in args.minus or []]
        words += [f"+ {word}" for word in args.plus or []]
        return Item(" ".join([name, *words]), [ItemText(text)], images)

    def _images(self, key: str) -> dict[str, str]:
        """Return a dict from image id to data URI, for the images of an item.

        ``key`` is the id of an image, or the ids of an image sequence, separated by tabs.
        """
        if self._thumbnails is None:
            return {}
        names = key.split("\t")
        self._missing += [name for name in names if name not in self._thumbnails]
        return {name: self._thumbnails.data_uri(name) for name in names if name in self._thumbnails}
