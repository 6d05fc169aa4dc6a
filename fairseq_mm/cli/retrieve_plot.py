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
import sys
from pathlib import Path

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import POSITIVE, REPEATED, Rows
from fairseq_mm.cli.retrieve_nearest import load_store_embedder
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError

_SIDE = 128  # pixels of an image in the file, twice its size on the page
_ROWS: Rows = {
    "--jsonl": ("Write the coordinates to this file, a point a line.", {"metavar": "FILE"}),
    "--id": ("Item of the store to draw; repeatable.", REPEATED),
    "--near": ("Draw the items nearest to this sentence; repeatable.", REPEATED),
    "--word": ("Word to draw; repeatable.", REPEATED),
    "--top": ("Number of items of each --near (default: 3).", {**POSITIVE, "default": 3}),
}


def add_plot_arguments(parser: argparse.ArgumentParser) -> None:
    store = "Feature store of vectors, made by fairseq-mm embed."
    parser.add_argument("--store", required=True, metavar="FILE", help=store)
    arguments.add(
        parser,
        *("checkpoint", "output", "device", "images"),
        checkpoint={"help": "Checkpoint that the vectors are from."},
        output={"required": True, "help": "HTML file to write."},
    )
    arguments.add_rows(parser, _ROWS)
    # load_store_embedder reads args.weights; no image is embedded here, so there is no option.
    parser.set_defaults(weights=None)


def run_plot(args: argparse.Namespace) -> None:
    arguments.check_outputs({"output": args.output, "jsonl": args.jsonl})
    register_quietly()
    import numpy as np

    from fairseq_mm.data.feature_store import FeatureStore
    from fairseq_mm.data.output_file import write_file
    from fairseq_mm.report.figures import PlotPoint, plot_section
    from fairseq_mm.report.html_page import render_page, write_page
    from fairseq_mm.report.thumbnails import Thumbnails
    from fairseq_mm.retrieval.nearest_vectors import VectorStore, principal_components

    opened = FeatureStore(args.store)
    embedder = load_store_embedder(opened, args)
    store = VectorStore(opened)
    ids = list(args.id)
    for key in ids:
        opened.count_rows(key)  # raises UserError if the item is missing
    if args.near:
        for items in store.search(embedder.embed_texts(args.near), args.top):
            ids += [key for key, _ in items]
    ids, words = list(dict.fromkeys(ids)), list(dict.fromkeys(args.word))
    if len(ids) + len(words) < 3:  # two points lie on a line
        raise UserError(
            f"{len(ids) + len(words)} images and words: at least 3 make a plane; give --id, "
            "--near or --word."
        )
    plane = principal_components(np.concatenate([store[ids], embedder.embed_texts(words)]))
    thumbnails = Thumbnails(args.images, _SIDE)
    points = []
    for number, (label, (x, y)) in enumerate(zip([*ids, *words], plane.coordinates.tolist())):
        is_word = number >= len(ids)
        uri = thumbnails.data_uri(label) if not is_word and label in thumbnails else None
        points.append(PlotPoint(label, x, y, is_word, uri))
    if args.jsonl:
        lines = [
            {"kind": "word" if x.is_word else "image", "label": x.label, "x": x.x, "y": x.y}
            for x in points
        ]
        write_file(
            args.jsonl, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        )
    subtitle = f"{len(ids)} images and {len(words)} words of {embedder.files[0]}"
    section = plot_section(points, plane.variance_shares)
    write_page(Path(args.output), render_page("One space", [section], subtitle=subtitle))
    print(f"{args.output}: {len(ids)} images, {len(words)} words", file=sys.stderr)
