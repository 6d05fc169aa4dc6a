"""Makes the page of ``fairseq-mm search --html``: each query with thumbnails of its results."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from fairseq_mm.cli.records import counted
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.report.html_page import Section, render_page, write_page
from fairseq_mm.report.item_gallery import Item, ItemText, gallery_section
from fairseq_mm.report.thumbnails import thumbnail_uri

if TYPE_CHECKING:
    from fairseq_mm.inference.image_index import SearchResult

_SIDE = 320  # pixels of a thumbnail


def write_search_page(
    args: argparse.Namespace,
    queries: Sequence[str],
    results: "Sequence[SearchResult]",
    num_images: int,
) -> None:
    """Write the page of ``--html``: each query with the images found for it.

    Args:
        args: Parsed command line of ``fairseq-mm search``.
        queries: Sentences, followed by the paths of query images.
        results: Result of each query.
        num_images: Number of images in the index.
    """
    sections: list[Section] = []
    sentences = len(args.queries)
    for number, (query, result) in enumerate(zip(queries, results)):
        note = ""
        if result.unknown_words:
            note = (
                f"Left out, because the model does not know them: {', '.join(result.unknown_words)}"
            )
        is_image = number >= sentences
        if is_image:
            items = [_item(os.path.basename(query), query, {}, args.html)]
            sections.append(gallery_section(items, heading="Query"))
        items = [
            _item(image.id, image.path, {"score": image.score}, args.html)
            for image in result.images
        ]
        # a single query is the title of the page
        heading = "Nearest" if is_image or len(queries) == 1 else query
        sections.append(gallery_section(items, heading=heading, note=note))
    title = queries[0] if len(queries) == 1 else counted(len(queries), "query", "queries")
    page = render_page(title, sections, subtitle=f"{num_images:,} images in {args.folder}")
    write_page(Path(args.html), page)
    number = sum(len(result.images) for result in results)
    print(f"wrote {args.html}: {counted(number, 'image')}", file=sys.stderr)


def _item(name: str, path: str, scores: dict[str, float], page: str) -> Item:
    """Return a card of the page for one image, with a link to the image file.

    ``scores`` is empty for no scores; ``page`` is the path of the page, to which the link is
    relative.
    """
    uri = thumbnail_uri(MediaFile(name, path), _SIDE)
    # relative, so that a page in the folder can be moved or copied with it
    link = os.path.relpath(path, os.path.dirname(os.path.abspath(page)))
    return Item(name, [ItemText(None, scores)], {name: uri}, {name: quote(link)})
