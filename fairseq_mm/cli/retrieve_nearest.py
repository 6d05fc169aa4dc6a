"""Finds the images or sentences of a store that are nearest to a sentence or an image.

fairseq-mm embed data/flickr8k --checkpoint checkpoints/vse_bow --of images --output images.h5
fairseq-mm retrieve nearest "a dog on the beach" --checkpoint checkpoints/vse_bow --store images.h5
fairseq-mm retrieve nearest --image q.jpg --minus blue --plus red --checkpoint ... --store images.h5
fairseq-mm retrieve nearest --id 12.jpg --checkpoint ... --store sentences.h5 --data data/flickr8k

Prints a line an item: cosine, tab, id, and with --data the words of a sentence; with --resort the
distance that sorts comes after the cosine. In --jsonl: id, similarity (the cosine), rank by it,
distance_to_mean, text.

--minus and --plus take words away from the query and add them (Kiros et al. 2014, equation 15; "not
well observed" but with vse_bow), --resort N sorts the N nearest by their distance to their mean. An
item of the store that is asked with (--id) is not found; an image of it (--image) would find
itself. The index stands beside the store, or in --index, and is built once.
"""

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli.arguments import positive
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from fairseq_mm.data.feature_store import FeatureStore
    from fairseq_mm.inference.embedder import Embedder


def add_nearest_arguments(parser: argparse.ArgumentParser) -> None:
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("text", nargs="?", metavar="TEXT", help="sentence or word to ask with")
    asked.add_argument("--image", metavar="FILE", help="image to ask with")
    asked.add_argument("--id", metavar="ID", help="item of the store to ask with")
    parser.add_argument(
        "--store", required=True, metavar="FILE", help="of vectors, from fairseq-mm embed"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="PATH",
        help="the checkpoint that the vectors are from; not needed for --id without words",
    )
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help="the extractor's, for --image (default: beside --checkpoint)",
    )
    for name, what in (("minus", "take away"), ("plus", "add")):
        parser.add_argument(
            f"--{name}", action="append", default=[], metavar="WORD", help=f"{what}; repeatable"
        )
    parser.add_argument("--top", type=positive, default=5, metavar="N", help="(default: 5)")
    parser.add_argument(
        "--resort",
        type=positive,
        metavar="N",
        help="sort the N nearest by their distance to their mean, and print the first --top",
    )
    parser.add_argument("--data", metavar="DIR", help="data folder, to print sentences in words")
    parser.add_argument("--index", metavar="DIR", help="folder of the index (default: STORE.index)")
    parser.add_argument("--jsonl", action="store_true", help="print JSON, an item a line")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")


def run_nearest(args: argparse.Namespace) -> None:
    register_quietly()
    from fairseq_mm.data.feature_store import FeatureStore
    from fairseq_mm.retrieval.vector_arithmetic import retrieve_shifted
    from fairseq_mm.retrieval.vector_index import build_index

    if args.resort and args.resort < args.top:
        raise UserError(
            f"--resort {args.resort}: must be --top or more, but --top is {args.top}: these are "
            "chosen from the N nearest."
        )
    texts = _Sentences(args.data)
    store = FeatureStore(args.store)
    embedder = _embedder(args, store)
    query, minus, plus = _query(args, store, embedder)
    index = build_index(store, args.index or f"{args.store}.index")
    found = retrieve_shifted(
        index,
        query,
        minus=minus,
        plus=plus,
        top=args.top,
        resort=args.resort or 0,
        exclude=[args.id] if args.id else [],
    )
    # all are read before the first is printed: a damaged file leaves no half of a list
    for item, text in [(item, texts(item.id)) for item in found]:
        if args.jsonl:
            entry: dict[str, Any] = {**item._asdict(), "text": text}
            print(json.dumps({k: v for k, v in entry.items() if v is not None}, ensure_ascii=False))
        else:
            numbers = [item.similarity, item.distance_to_mean]
            columns = [f"{number:.4f}" for number in numbers if number is not None]
            print("\t".join([*columns, item.id, *([text] if text else [])]))
    if not found:
        print(f"{args.store}: has no item but the query", file=sys.stderr)


def _embedder(args: argparse.Namespace, store: "FeatureStore") -> "Optional[Embedder]":
    """The model that the query needs, if any.

    Raises:
        UserError: if it is missing, or as :func:`load_model_of`.
    """
    if args.checkpoint is None:
        if args.id and not args.minus and not args.plus:
            return None
        raise UserError("--checkpoint: is missing; the query and its words are embedded by it.")
    return load_model_of(store, args)


def load_model_of(store: "FeatureStore", args: argparse.Namespace) -> "Embedder":
    """The model of ``--checkpoint``.

    Raises:
        UserError: if it cannot be loaded, or is not the one that the vectors are from.
    """
    from fairseq_mm.inference.embedder import load_embedder

    embedder = load_embedder(args.checkpoint, weights=args.weights, device=args.device)
    embedder.check_vectors(store.attributes, store.dim, what=args.store)
    return embedder


def _query(
    args: argparse.Namespace, store: "FeatureStore", embedder: "Optional[Embedder]"
) -> "tuple[np.ndarray, Optional[np.ndarray], Optional[np.ndarray]]":
    """Vectors of the query ``[K]``, and of the words to take away and to add."""
    if embedder is None:
        return store.read(args.id)[0], None, None
    words = [embedder.embed_texts(given) if given else None for given in (args.minus, args.plus)]
    if args.id:
        query = store.read(args.id)[0]
    elif args.image:
        query = embedder.embed_images([args.image])[0]
    else:
        query = embedder.embed_texts([args.text])[0]
    return query, words[0], words[1]


class _Sentences:
    """Words of the sentences whose ids are SPLIT:LINE."""

    def __init__(self, data: Optional[str]) -> None:
        from fairseq_mm.data.binarised_text import load_dictionary

        self.data = data
        self._dictionary = None if data is None else load_dictionary(os.path.join(data, "dict.txt"))
        self._splits: dict[str, Any] = {}

    def __call__(self, key: str) -> Optional[str]:
        split, _, line = key.rpartition(":")
        if self.data is None or not split or not line.isdecimal():
            return None
        if split not in self._splits:
            self._splits[split] = self._read(self.data, split)
        lines = self._splits[split]
        if lines is None or int(line) >= len(lines):
            return None
        assert self._dictionary is not None
        return self._dictionary.string(lines[int(line)])

    def _read(self, data: str, split: str) -> Any:
        from fairseq_mm.data.binarised_text import load_binarised_text

        path = os.path.join(data, split)
        if not os.path.exists(f"{path}.idx"):  # an image's id may have a colon, too
            return None
        assert self._dictionary is not None
        return load_binarised_text(
            path, num_types=len(self._dictionary), end=self._dictionary.eos()
        )
