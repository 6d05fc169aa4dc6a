"""Finds the images or sentences nearest to a sentence or an image, in a store of
vectors by cosine or in a data folder by likelihood.

  fairseq-mm embed data-bin/flickr8k --checkpoint checkpoints/vse_bow \\
      --of images --output images.h5
  fairseq-mm retrieve nearest "a dog on the beach" --store images.h5 \\
      --checkpoint checkpoints/vse_bow
  fairseq-mm retrieve nearest --image q.jpg --minus blue --plus red \\
      --store images.h5 --checkpoint checkpoints/vse_bow
  fairseq-mm retrieve nearest "a dog on the beach" --data data-bin/flickr8k \\
      --split valid --checkpoint checkpoints/m_rnn
  fairseq-mm retrieve nearest --image q.jpg --data data-bin/flickr8k \\
      --checkpoint checkpoints/m_rnn

Prints one line per item: score, tab, id. The line of a sentence also has the
sentence's published caption (with --store only if --data is given). With
--resort, the distance by which items are sorted follows the score. Fields of
--jsonl: id, score, rank, distance_to_mean, text. --html also writes a page of
the query and the items with the images found in --images (Figure 1 of Mao et al.
2015, Figure 4 of Kiros et al. 2014).

Vectors: --minus and --plus subtract words from the query and add words to it
(Kiros et al. 2014, equation 15; according to section 3.2 of that paper, this works
well only with models such as vse_bow). --resort N sorts the N nearest items by the
distance of each item to the mean of the N. The query item of --id is excluded from
the results; a query image (--image) that is in the store is not excluded. The
search is exact: it compares the query with all vectors of the store.

Likelihood, with captioning models (Mao et al. 2015, section 5, Figure 1):
images of the split are sorted by log P(sentence | image), sentences of the
split by log P(sentence | image) - log P(sentence), where P(sentence) is the mean
over --marginal-images training images. --id is an image of the split.
"""

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED

if TYPE_CHECKING:
    from fairseq_mm.data.feature_store import FeatureStore
    from fairseq_mm.inference.embedder import Embedder
    from fairseq_mm.retrieval.nearest_vectors import Retrieved

# options that only one way of searching has
VECTOR_OPTIONS = ("minus", "plus", "resort", "index")
LIKELIHOOD_OPTIONS = ("features", "marginal_images")


def add_nearest_arguments(parser: argparse.ArgumentParser) -> None:
    query = parser.add_mutually_exclusive_group(required=True)
    query.add_argument("text", nargs="?", metavar="TEXT", help="Query: a sentence or a word.")
    query.add_argument("--image", metavar="FILE", help="Query image.")
    query.add_argument(
        "--id", metavar="ID", help="Id of an item of the store, or of an image, as the query."
    )
    arguments.add(
        parser,
        *("checkpoint", "data", "weights", "device", "jsonl"),
        checkpoint={
            "required": False,
            "help": "Checkpoint that the vectors are from (needed but for --id without words), or "
            "of a model of captions.",
        },
        data={"help": "Data folder: to show sentences, or to search by likelihood."},
        jsonl={"help": "Write one JSON object per line, with the fields above."},
    )
    parser.add_argument(
        "--top",
        type=arguments.positive,
        default=5,
        metavar="N",
        help="Number of items to retrieve (default: 5).",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="Write a page of the query and the items to this file."
    )
    parser.add_argument(
        "--images",
        action="append",
        metavar="FOLDER",
        help="Folder or .tar of the images that the page shows; may be given again.",
    )
    vectors = parser.add_argument_group("vectors")
    vectors.add_argument(
        "--store", metavar="FILE", help="Feature store of vectors, made by fairseq-mm embed."
    )
    for name, what in (("minus", "take away"), ("plus", "add")):
        vectors.add_argument(
            f"--{name}", action="append", metavar="WORD", help=f"Word to {what}; repeatable."
        )
    arguments.add_numbers(
        vectors,
        resort="Sort the N nearest by their distance to their mean, and show the first --top.",
    )
    vectors.add_argument(
        "--index", metavar="DIR", help="Ignored: earlier versions wrote an index to this folder."
    )
    likelihood = parser.add_argument_group("likelihood")
    arguments.add(
        likelihood,
        *("split", "features", "seed"),
        split={"default": "valid", "help": "Split that is searched (default: valid)."},
        seed={"default": SEED},
    )
    arguments.add_numbers(
        likelihood,
        marginal_images="Number of training images for P(sentence), drawn with --seed (default: "
        "100).",
    )


def run_nearest(args: argparse.Namespace) -> None:
    register_quietly()
    for name in LIKELIHOOD_OPTIONS if args.store else VECTOR_OPTIONS:
        if arguments.is_given(args, name):
            way = "likelihood, which takes no --store" if args.store else "vectors of a --store"
            raise UserError(f"{arguments.flag(name)}: is for search by {way}.")
    warn_of_index(args)
    if args.images and not args.html:
        raise UserError("--images: is for the page of --html, which is missing.")
    # The page checks --html and --images; this must come before the search, which takes long.
    page = None
    if args.html:
        from fairseq_mm.cli.retrieve_page import RetrievedPage

        page = RetrievedPage(args)
    query_text = args.text
    if args.store:
        # Reading the dictionary first reports a wrong folder before the search, which takes long.
        sentences = _Sentences(args.data)
        items = _search_vectors(args)
        entries = [{**item._asdict(), "text": sentences.get(item.id)} for item in items]
        query_text = sentences.get(args.id) if args.id else args.text
    else:
        from fairseq_mm.cli.retrieve_likelihood import nearest_by_likelihood

        entries = nearest_by_likelihood(args)
    if page is not None:
        page.write(entries, query_text)
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


def warn_of_index(args: argparse.Namespace) -> None:
    """Warn if ``--index`` is given, which had an effect only in earlier versions."""
    if args.index is not None:
        print(
            f"--index {args.index}: is ignored, because no index is needed any more; the folder "
            "can be deleted.",
            file=sys.stderr,
        )


def _search_vectors(args: argparse.Namespace) -> "list[Retrieved]":
    from fairseq_mm.data.feature_store import FeatureStore
    from fairseq_mm.retrieval.nearest_vectors import VectorStore, retrieve_shifted

    if args.resort and args.resort < args.top:
        raise UserError(
            f"--resort {args.resort}: must be --top or more, but --top is {args.top}: these are "
            "chosen from the N nearest."
        )
    store = FeatureStore(args.store)
    embedder = None
    if args.checkpoint is not None:
        embedder = load_store_embedder(store, args)
    elif not args.id or args.minus or args.plus:
        raise UserError("--checkpoint: is missing; the query and its words are embedded by it.")
    minus, plus = (
        embedder.embed_texts(words) if embedder is not None and words else None
        for words in (args.minus, args.plus)
    )
    if args.id:
        query = store.read(args.id)[0]
    else:
        assert embedder is not None
        query = (
            embedder.embed_images([args.image])[0]
            if args.image
            else embedder.embed_texts([args.text])[0]
        )
    return retrieve_shifted(
        VectorStore(store),
        query,
        minus=minus,
        plus=plus,
        top=args.top,
        resort=args.resort or 0,
        # the nearest neighbour of an item is the item itself
        exclude=[args.id] if args.id else [],
    )


def load_store_embedder(store: "FeatureStore", args: argparse.Namespace) -> "Embedder":
    """Load the model of ``--checkpoint``, which must have made the vectors of the store."""
    from fairseq_mm.inference.embedder import load_embedder

    embedder = load_embedder(args.checkpoint, weights=args.weights, device=args.device)
    embedder.check_vectors(store.attributes, store.dim, what=args.store)
    return embedder


class _Sentences:
    """Captions of a data folder, looked up by the sentence id SPLIT:LINE.

    Captions are as published or, if the data folder lacks these, decoded from the binarised text,
    in which unknown words are ``<unk>``.

    Args:
        data: Path of the data folder; None for no captions.
    """

    def __init__(self, data: Optional[str]) -> None:
        from fairseq_mm.data.binarised_text import load_dictionary

        self.data = data
        self.dictionary: Any = None
        if data is not None:
            self.dictionary = load_dictionary(os.path.join(data, "dict.txt"))
        self._captions: dict[str, Any] = {}

    def get(self, key: str) -> Optional[str]:
        """Return the caption with the sentence id ``key``; None if ``key`` is no sentence id."""
        split, _, line = key.rpartition(":")
        if self.data is None or not split or not line.isdecimal():
            return None
        path = os.path.join(self.data, split)
        if not os.path.exists(f"{path}.idx"):  # the key is an image's id, which may contain a colon
            return None
        if split not in self._captions:
            self._captions[split] = self._read(path, split)
        captions = self._captions[split]
        if int(line) >= len(captions):
            return None
        text = captions[int(line)]
        return text if isinstance(text, str) else self.dictionary.string(text)

    def _read(self, path: str, split: str) -> Any:
        """Return the captions of a split before tokenization, or else its binarised text.

        ``path`` is the path of the binarised text without ``.bin`` and ``.idx``.
        """
        from fairseq_mm.data.binarised_text import load_binarised_text
        from fairseq_mm.data.split_files import read_published_captions

        end = self.dictionary.eos()
        tokens = load_binarised_text(path, num_types=len(self.dictionary), end=end)
        captions = read_published_captions(self.data, split)
        # If the counts differ, captions would be shown for the wrong lines.
        return tokens if captions is None or len(captions) != len(tokens) else captions
