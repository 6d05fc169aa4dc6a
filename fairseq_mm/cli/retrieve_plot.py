"""Draws images and words on the first two principal components of their
vectors, as HTML.

  fairseq-mm retrieve plot --checkpoint checkpoints/vse_bow --store images.h5 \\
      --output plane.html --near "a red car" --near "a blue car" --word red \\
      --word blue --word car --images photos/

The plot is like Figure 5 of Kiros et al. 2014. It has the images of --id, and the
--top images nearest to each --near. With --images the page shows the images,
otherwise each image is a dot. --jsonl also writes the coordinates to a file.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.retrieve_nearest import load_store_embedder, warn_of_index
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.report.thumbnails import Thumbnails

_SIDE = 128  # pixels of an image in the file, twice its size on the page


def add_plot_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        required=True,
        metavar="FILE",
        help="Feature store of vectors, made by fairseq-mm embed.",
    )
    arguments.add(
        parser,
        *("checkpoint", "output", "device"),
        checkpoint={"help": "Checkpoint that the vectors are from."},
        output={"required": True, "help": "HTML file to write."},
    )
    parser.add_argument(
        "--jsonl", metavar="FILE", help="Write the coordinates to this file, a point a line."
    )
    for name, metavar, text in (
        ("id", "ID", "Item of the store to draw; repeatable."),
        ("near", "TEXT", "Draw the items nearest to this sentence; repeatable."),
        ("word", "WORD", "Word to draw; repeatable."),
    ):
        parser.add_argument(f"--{name}", action="append", default=[], metavar=metavar, help=text)
    parser.add_argument(
        "--top",
        type=arguments.positive,
        default=3,
        metavar="N",
        help="Number of items of each --near (default: 3).",
    )
    parser.add_argument(
        "--index", metavar="DIR", help="Ignored: earlier versions wrote an index to this folder."
    )
    parser.add_argument(
        "--images", nargs="+", metavar="PATH", help="Folders or archives of the images to show."
    )
    # load_store_embedder reads args.weights; no image is embedded here, so there is no option.
    parser.set_defaults(weights=None)


def run_plot(args: argparse.Namespace) -> None:
    register_quietly()
    import numpy as np

    from fairseq_mm.data.feature_store import FeatureStore
    from fairseq_mm.data.output_file import write_file
    from fairseq_mm.report.embedding_plot import PlotPoint, plot_section
    from fairseq_mm.report.html_page import render_page, write_page
    from fairseq_mm.report.thumbnails import Thumbnails
    from fairseq_mm.retrieval.nearest_vectors import VectorStore
    from fairseq_mm.retrieval.projection import principal_components

    if args.jsonl and os.path.realpath(args.jsonl) == os.path.realpath(args.output):
        raise UserError(f"--jsonl {args.jsonl}: is --output; give another file.")
    store = FeatureStore(args.store)
    embedder = load_store_embedder(store, args)
    warn_of_index(args)
    vectors_of_store = VectorStore(store)
    ids = list(args.id)
    if args.near:
        for items in vectors_of_store.search(embedder.embed_texts(args.near), args.top):
            ids += [item.id for item in items]
    ids = list(dict.fromkeys(ids))
    words = list(dict.fromkeys(args.word))
    if len(ids) + len(words) < 3:  # two points lie on a line
        raise UserError(
            f"{len(ids) + len(words)} images and words: at least 3 make a plane; give --id, "
            "--near or --word."
        )
    parts = [vectors_of_store.read(ids)] if ids else []
    parts += [embedder.embed_texts(words)] if words else []
    vectors = np.concatenate(parts)
    plane = principal_components(vectors)
    thumbnails = Thumbnails(args.images, _SIDE) if args.images else None
    points = [
        PlotPoint(label, x, y, number >= len(ids), _find_uri(thumbnails, label, number < len(ids)))
        for number, (label, (x, y)) in enumerate(zip([*ids, *words], plane(vectors).tolist()))
    ]
    section = plot_section(points, plane.variance_shares)
    if args.jsonl:
        entries = [
            {"kind": "word" if x.is_word else "image", "label": x.label, "x": x.x, "y": x.y}
            for x in points
        ]
        lines = (json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        write_file(args.jsonl, "".join(lines))
    subtitle = f"{len(ids)} images and {len(words)} words of {embedder.files[0]}"
    write_page(Path(args.output), render_page("One space", [section], subtitle=subtitle))
    print(f"{args.output}: {len(ids)} images, {len(words)} words", file=sys.stderr)


def _find_uri(thumbnails: "Optional[Thumbnails]", key: str, is_image: bool) -> Optional[str]:
    if thumbnails is None or not is_image:
        return None
    if key not in thumbnails:
        raise UserError(f"--images: have none for {key!r}.")
    return thumbnails.data_uri(key)
