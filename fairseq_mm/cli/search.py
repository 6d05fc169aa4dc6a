"""Search a folder of your own images by sentences or by another image.

  fairseq-mm index photos --checkpoint checkpoints/vse_bow
  fairseq-mm search photos "a dog in the snow"
  fairseq-mm search photos "two men on a boat" "a red car" --html found.html
  fairseq-mm search photos --image dog.jpg --top 20
  fairseq-mm search photos --queries sentences.txt --top 1 --jsonl

Prints one line per image, nearest first: rank, tab, score, tab, path. The score is
the cosine between the vectors of the query and of the image. If there are several
queries, each has its own list after a line with the query. The search is exact: it
compares the query with all images of the index.

Words that the model does not know are reported on stderr and left out. Images that
have vanished since they were indexed are left out and counted on stderr. Update the
index after changes of the folder: fairseq-mm index FOLDER.

Fields of --jsonl: id (path of the image in FOLDER), path, score, rank, query.
--html writes a page with thumbnails; a click on a thumbnail opens the image.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import POSITIVE, REPEATED, Rows, Rule
from fairseq_mm.cli.records import counted, open_output
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.data.input_files import read_lines
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.inference.image_index import SearchResult

_SIDE = 320  # pixels of a thumbnail
_FILES = {**REPEATED, "metavar": "FILE"}
_RULES = (Rule("weights", needs=("image",), because="sentences need no image extractor"),)
_ROWS: Rows = {
    "folder": ("Folder of images that has an index.", {"metavar": "FOLDER"}),
    "queries": ("Sentence or word to find.", {"nargs": "*", "metavar": "SENTENCE"}),
    "--queries": ("File of sentences, one a line; repeatable.", {"dest": "query_files", **_FILES}),
    "--image": ("Image to find similar images of; repeatable.", _FILES),
    "--top": ("Number of images for each query (default: 10).", {**POSITIVE, "default": 10}),
    "--index": ("Index (default: .fairseq_mm/index.h5 in FOLDER).", {"metavar": "FILE"}),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_rows(parser, _ROWS)
    arguments.add(
        parser,
        *("html", "output", "jsonl", "checkpoint", "weights"),
        html={"help": "Write a page of the images to this file."},
        jsonl={"help": "Write one JSON object per line, with the fields above."},
        checkpoint={"required": False, "help": "Embedding (default: the one that made the index)."},
        weights={"help": "Extractor's weights, for --image (default: as the index records)."},
    )


def run(args: argparse.Namespace) -> int:
    arguments.check(args, _RULES)
    for path in args.query_files:
        args.queries += [line for _, line in read_lines(path) if line.strip()]
    arguments.require(args, "queries", "image")
    register_quietly()
    from fairseq_mm.inference.image_index import ImageIndex

    index = ImageIndex.open(
        args.folder, index=args.index, checkpoint=args.checkpoint, weights=args.weights
    )
    results: list[SearchResult] = []
    if args.queries:
        results += index.search(args.queries, args.top)
    if args.image:
        results += index.search_images(args.image, args.top)
    queries = [*args.queries, *args.image]
    stale = {name for result in results for name in result.stale}
    if not any(result.images for result in results):
        raise UserError(
            f"{args.folder}: none of the {len(index):,} images of the index is there: update the "
            f"index (fairseq-mm index {args.folder})."
        )
    if args.html:
        _write_page(args, queries, results, len(index))
    _write(args, queries, results)
    for query, result in zip(queries, results):
        if result.unknown_words:
            unknown = ", ".join(result.unknown_words)
            print(
                f"{query!r}: left out words that the model does not know: {unknown}",
                file=sys.stderr,
            )
    if stale:
        number = counted(len(stale), "image is", "images are")
        print(
            f"{number} left out, vanished since the folder was indexed: update the index "
            f"(fairseq-mm index {args.folder})",
            file=sys.stderr,
        )
    return 0


def _write(args: argparse.Namespace, queries: list[str], results: "list[SearchResult]") -> None:
    is_jsonl = args.jsonl or (args.output or "").lower().endswith(".jsonl")
    number = 0
    with open_output(args.output) as file:
        for query, result in zip(queries, results):
            if len(queries) > 1 and not is_jsonl:
                print(query, file=file)
            for image in result.images:
                number += 1
                if is_jsonl:
                    fields: dict[str, Any] = {
                        **image._asdict(),
                        "score": round(image.score, 6),
                        "query": query,
                    }
                    print(json.dumps(fields, ensure_ascii=False), file=file)
                else:
                    print(image.rank, f"{image.score:.4f}", image.path, sep="\t", file=file)
    if args.output:
        print(f"wrote {args.output}: {counted(number, 'image')}", file=sys.stderr)


def _write_page(
    args: argparse.Namespace,
    queries: Sequence[str],
    results: "Sequence[SearchResult]",
    num_images: int,
) -> None:
    """Write the page of ``--html``: each query with thumbnails of the images found for it."""
    from fairseq_mm.extract.media import MediaFile
    from fairseq_mm.report.html_page import Section, render_page, write_page
    from fairseq_mm.report.item_gallery import Item, ItemText, gallery_section
    from fairseq_mm.report.thumbnails import thumbnail_uri

    # relative links, so that a page in the folder can be moved or copied with it
    folder = os.path.dirname(os.path.abspath(args.html))

    def build_item(name: str, path: str, scores: dict[str, float]) -> Item:
        uri = thumbnail_uri(MediaFile(name, path), _SIDE)
        link = quote(os.path.relpath(path, folder))
        return Item(name, [ItemText(None, scores)], {name: uri}, {name: link})

    sections: list[Section] = []
    for number, (query, result) in enumerate(zip(queries, results)):
        is_image = number >= len(args.queries)
        if is_image:
            item = build_item(os.path.basename(query), query, {})
            sections.append(gallery_section([item], heading="Query"))
        items = [
            build_item(image.id, image.path, {"score": image.score}) for image in result.images
        ]
        unknown = ", ".join(result.unknown_words)
        note = f"Left out, because the model does not know them: {unknown}" if unknown else ""
        # a single query is the title of the page
        heading = "Nearest" if is_image or len(queries) == 1 else query
        sections.append(gallery_section(items, heading=heading, note=note))
    title = queries[0] if len(queries) == 1 else counted(len(queries), "query", "queries")
    page = render_page(title, sections, subtitle=f"{num_images:,} images in {args.folder}")
    write_page(Path(args.html), page)
    number = sum(len(result.images) for result in results)
    print(f"wrote {args.html}: {counted(number, 'image')}", file=sys.stderr)
