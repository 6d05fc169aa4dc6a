"""Finds the images or sentences nearest to a sentence or an image, in a store of
vectors by cosine or in a data folder by likelihood.

  fairseq-mm retrieve nearest "a dog on the beach" --store images.h5 \\
      --checkpoint checkpoints/vse_bow
  fairseq-mm retrieve nearest --image q.jpg --minus blue --plus red \\
      --store images.h5 --checkpoint checkpoints/vse_bow
  fairseq-mm retrieve nearest --image q.jpg --data data-bin/flickr8k \\
      --split valid --checkpoint checkpoints/m_rnn

Prints one line per item: score, tab, id, and the caption of a sentence. Fields of
--jsonl: id, score, rank, distance_to_mean, text. Scores are cosines (Kiros et al.
2014, equation 15) or, with captioning models, log P(sentence | image), for
sentences minus log P(sentence) (Mao et al. 2015, section 5). The query item of
--id is left out of the results.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import POSITIVE, Rows, Rule
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.data.feature_store import FeatureStore
    from fairseq_mm.inference.embedder import Embedder

_SIDE = 320  # pixels of an image in the page
_RULES = (
    *(Rule(name, needs=("store",)) for name in ("minus", "plus", "resort")),
    *(Rule(name, excludes=("store",)) for name in ("features", "marginal_images")),
    Rule("images", needs=("html",)),
)
_FILE, _WORDS = {"metavar": "FILE"}, {"action": "append", "metavar": "WORD"}
_QUERY: Rows = {
    "text": ("Query: a sentence or a word.", {"nargs": "?", "metavar": "TEXT"}),
    "--image": ("Query image.", _FILE),
    "--id": ("Id of an item of the store, or of an image, as the query.", {"metavar": "ID"}),
}
_VECTORS: Rows = {
    "--store": ("Feature store of vectors, made by fairseq-mm embed.", _FILE),
    "--minus": ("Word to take away; repeatable.", _WORDS),
    "--plus": ("Word to add; repeatable.", _WORDS),
    "--resort": ("Sort the N nearest (--top or more) by their distance to their mean.", POSITIVE),
}


def add_nearest_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_rows(parser.add_mutually_exclusive_group(required=True), _QUERY)
    arguments.add(
        parser,
        *("checkpoint", "data", "weights", "device", "jsonl", "html", "images"),
        checkpoint={
            "required": False,
            "help": "Checkpoint that the vectors are from, or of a model of captions.",
        },
        data={"help": "Data folder: to show sentences, or to search by likelihood."},
        jsonl={"help": "Write one JSON object per line, with the fields above."},
    )
    top = {**POSITIVE, "default": 5, "help": "Number of items to retrieve (default: 5)."}
    parser.add_argument("--top", **top)
    arguments.add_rows(parser.add_argument_group("vectors"), _VECTORS)
    likelihood = parser.add_argument_group("likelihood")
    arguments.add(
        likelihood,
        *("split", "features"),
        split={"default": "valid", "help": "Split that is searched (default: valid)."},
    )
    arguments.add_numbers(
        likelihood, marginal_images="Number of training images for P(sentence) (default: 100)."
    )


def run_nearest(args: argparse.Namespace) -> None:
    arguments.check(args, _RULES)
    register_quietly()
    from fairseq_mm.data.feature_store import FeatureStore
    from fairseq_mm.report.thumbnails import Thumbnails
    from fairseq_mm.retrieval.nearest_vectors import VectorStore, retrieve_shifted

    thumbnails = Thumbnails(args.images, _SIDE)  # before the search, which takes long
    query_text = args.text
    if args.store:
        get_caption = _open_captions(args.data)  # before the search, which takes long
        if args.checkpoint is None and (not args.id or args.minus or args.plus):
            raise UserError("--checkpoint: is missing; the query and its words are embedded by it.")
        store = FeatureStore(args.store)
        embedder: Any = load_store_embedder(store, args) if args.checkpoint else None
        minus, plus = (words and embedder.embed_texts(words) for words in (args.minus, args.plus))
        if args.id:
            query = store.read(args.id)[0]
        elif args.image:
            query = embedder.embed_images([args.image])[0]
        else:
            query = embedder.embed_texts([args.text])[0]
        items = retrieve_shifted(
            VectorStore(store),
            query,
            minus=minus,
            plus=plus,
            top=args.top,
            resort=max(args.resort, args.top) if args.resort else 0,
            # the nearest neighbour of an item is the item itself
            exclude=[args.id] if args.id else [],
        )
        entries = [{**item._asdict(), "text": get_caption(item.id)} for item in items]
        query_text = get_caption(args.id) if args.id else args.text
    else:
        from fairseq_mm.cli.rank_images import nearest_by_likelihood

        entries = nearest_by_likelihood(args)
    if args.html:
        _write_page(args, entries, query_text, thumbnails)
    # All sentences are read before the first is printed, so that a damaged file prints nothing.
    for entry in entries:
        if args.jsonl:
            fields = {name: value for name, value in entry.items() if value is not None}
            print(json.dumps(fields, ensure_ascii=False))
        else:
            numbers = [entry["score"], entry.get("distance_to_mean")]
            columns = [f"{number:.4f}" for number in numbers if number is not None]
            columns += [entry["id"], *([entry["text"]] if entry.get("text") else [])]
            print("\t".join(columns))
    if not entries:
        print(f"{args.store}: has no item but the query", file=sys.stderr)


def load_store_embedder(store: "FeatureStore", args: argparse.Namespace) -> "Embedder":
    """Load the model of ``--checkpoint``, and check that it made the vectors of the store."""
    from fairseq_mm.inference.embedder import load_embedder

    embedder = load_embedder(args.checkpoint, weights=args.weights, device=args.device)
    embedder.check_vectors(store.attributes, store.dim, what=args.store)
    return embedder


def _write_page(
    args: argparse.Namespace,
    entries: Sequence[Mapping[str, Any]],
    query_text: Optional[str],
    thumbnails: Any,
) -> None:
    """Write the page of ``--html``: the query and the items that were retrieved for it.

    Args:
        entries: JSON records of the retrieved items, nearest first.
        query_text: Query sentence; None if the query is an image.
        thumbnails: Images of ``--images`` by name; empty without this option.
    """
    from fairseq_mm.extract.media import MediaFile
    from fairseq_mm.report.html_page import render_page, write_page
    from fairseq_mm.report.item_gallery import Item, ItemText, gallery_section
    from fairseq_mm.report.thumbnails import thumbnail_uri

    items: list[Item] = []
    for entry in entries:
        names = ("score", "distance_to_mean")
        scores = {name: entry[name] for name in names if entry.get(name) is not None}
        text = entry.get("text")
        images = thumbnails.find(entry["id"]) if args.images and text is None else {}
        items.append(Item(entry["id"], [ItemText(text, scores)], images))
    name = args.text or args.id or os.path.basename(args.image)
    if args.image:
        images = {name: thumbnail_uri(MediaFile(name, args.image), _SIDE)}
    else:
        images = thumbnails.find(args.id) if args.images and query_text is None else {}
    # U+2212 is the minus sign; a hyphen before a word would look like a dash.
    words = [f"\u2212 {word}" for word in args.minus or []]
    words += [f"+ {word}" for word in args.plus or []]
    query = Item(" ".join([name, *words]), [ItemText(query_text)], images)
    sections = [
        gallery_section([query], heading="Query"),
        gallery_section(items, heading="Nearest"),
    ]
    searched = args.store or f"{args.data}, {args.split}"
    page = render_page(query.key, sections, subtitle=f"{len(items)} nearest of {searched}")
    write_page(Path(args.html), page)
    note = thumbnails.describe_missing()
    print(f"wrote {args.html}: {len(items):,} items{note}", file=sys.stderr)


def _open_captions(data: Optional[str]) -> Callable[[Optional[str]], Optional[str]]:
    """Return a function from a sentence id, SPLIT:LINE, to the caption in the data folder ``data``.
    Its result is None for other ids, or if ``data`` is None."""
    from fairseq_mm.data.records import open_split, split_names

    # opening valid reports a folder without splits
    names = split_names(data) or ["valid"] if data else []
    splits = {name: open_split(str(data), name) for name in names}

    def get(key: Optional[str]) -> Optional[str]:
        split, _, line = str(key).rpartition(":")
        # an image's id may contain a colon
        if split not in splits or not line.isdecimal():
            return None
        texts = splits[split].texts
        return texts[int(line)] if int(line) < len(texts) else None

    return get
