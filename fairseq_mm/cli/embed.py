"""Embeds images, sentences and words, and writes their vectors to a feature store.

  fairseq-mm embed DATA --checkpoint best.pt --split train --output vectors.h5
  fairseq-mm embed DATA --checkpoint best.pt --of words --output words.h5

The store has one vector of length 1 per image, sentence or word. Images keep their ids, the id of
a sentence is SPLIT:LINE (lines are counted from 0, as in fairseq-generate), and the id of a word
is word:WORD; a word is embedded as a sentence of one word. Sentences and words need no features, so
DATA may contain only text (fairseq-mm prepare captions --without-images). The command also writes
vectors.SPLIT.visual_ids, with the sentence id of each line of the split. If this file is used as
SPLIT.visual_ids of a data folder, a model (sc_nlm) is trained on the vector of each sentence, not
of its image.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairseq_mm.cli import arguments
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from fairseq_mm.inference.checkpoint import Checkpoint

KINDS = ("images", "sentences", "words")
_WORDS_PER_BATCH = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="Data folder, made by fairseq-mm prepare.")
    arguments.add(
        parser,
        *("checkpoint", "split", "features"),
        checkpoint={"help": "Checkpoint of the embedding model, or folder with one."},
        split={"default": "valid", "help": "Split to embed (default: valid)."},
        features={
            "help": "Feature store of the images (default: features.h5 in DATA); sentences "
            "and words need none."
        },
    )
    parser.add_argument(
        "--of",
        nargs="+",
        choices=KINDS,
        default=["images", "sentences"],
        help="Items to embed (default: images and sentences).",
    )
    arguments.add(
        parser,
        *("output", "device"),
        output={"required": True, "help": "Feature store to write."},
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="Replace an existing store at --output."
    )


def run(args: argparse.Namespace) -> None:
    arguments.check(args)
    register_quietly()
    from fairseq_mm.cli.likelihood import load_on_data
    from fairseq_mm.cli.rank_images import embed_split_in_order
    from fairseq_mm.inference.checkpoint import Checkpoint, usable_device

    args.device = usable_device(args.device)
    checkpoint = Checkpoint.open(args.checkpoint)
    if "images" not in args.of:
        checkpoint.check_embedding()
        _embed_text_only(args, checkpoint)
        return
    # Loading comes first, because its error message names the task of a wrong checkpoint.
    (model,), task = load_on_data([checkpoint], args)
    checkpoint.check_embedding()
    # Without sentences, one line per image is enough.
    task.cfg.one_per_item = "sentences" not in args.of
    task.load_dataset(args.split, combine=False)
    split = embed_split_in_order(task.datasets[args.split], model, args.device)
    for name in split.image_names:
        if "\t" in name:
            raise UserError(
                f"{name.partition(chr(9))[0]}: belongs to a line of several images, which have no "
                "vector of their own; give --of sentences."
            )
    rows = list(zip(split.image_names, split.images))
    sentence_ids: list[str] = []
    if "sentences" in args.of:
        sentence_ids = [f"{args.split}:{line}" for line in split.lines.tolist()]
        rows += zip(sentence_ids, split.sentences)
    if "words" in args.of:
        rows += _embed_words(model, task.target_dictionary, args.device)
    _write(args, checkpoint, model, rows, sentence_ids)


def _embed_text_only(args: argparse.Namespace, checkpoint: "Checkpoint") -> None:
    """Embed sentences and words of a data folder, and write their vectors to the store.

    The folder needs no features and no image ids. Words that the model's dictionary lacks are
    embedded as ``<unk>``, even if the folder's dictionary has them.
    """
    from fairseq_mm.data.binarised_text import (
        check_no_empty_line,
        load_binarised_text,
        load_dictionary,
    )
    from fairseq_mm.inference.embedder import Embedder

    embedder = Embedder(checkpoint.build(args.device))
    model, known = embedder.models[0], embedder.task.target_dictionary
    rows: list[tuple[str, np.ndarray]] = []
    sentence_ids: list[str] = []
    if "sentences" in args.of:
        dictionary = load_dictionary(os.path.join(args.data, "dict.txt"))
        base = os.path.join(args.data, args.split)
        text = load_binarised_text(base, num_types=len(dictionary), end=dictionary.eos())
        check_no_empty_line(f"{base}.idx", text.sizes)
        # Maps indices of the folder's dictionary to the model's; embed_tokens adds the </s>.
        known_index = [known.index(symbol) for symbol in dictionary.symbols]
        sentences = [[known_index[n] for n in text[i][:-1].tolist()] for i in range(len(text))]
        new = len(set(dictionary.symbols[dictionary.nspecial :]) - set(known.symbols))
        if new:
            print(
                f"{args.data}: {new:,} of the {len(dictionary) - dictionary.nspecial:,} words of "
                f"its dictionary are not in the vocabulary of {checkpoint.path}, and are "
                "embedded as <unk>",
                file=sys.stderr,
            )
        sentence_ids = [f"{args.split}:{line}" for line in range(len(sentences))]
        rows += zip(sentence_ids, embedder.embed_tokens(sentences))
    if "words" in args.of:
        rows += _embed_words(model, known, args.device)
    _write(args, checkpoint, model, rows, sentence_ids)


def _embed_words(model: Any, dictionary: Any, device: str) -> "list[tuple[str, np.ndarray]]":
    """Embed each word of a dictionary as a sentence of one word; return pairs (id, vector)."""
    import torch

    numbers = torch.arange(dictionary.nspecial, len(dictionary))
    rows: list[tuple[str, np.ndarray]] = []
    with torch.no_grad():
        for part in numbers.split(_WORDS_PER_BATCH):
            ends = torch.full_like(part, dictionary.eos())
            vectors = model.to(device).embed_sentences(torch.stack([part, ends], 1).to(device))
            words = [f"word:{dictionary[i]}" for i in part.tolist()]
            rows += zip(words, vectors.float().cpu().numpy())
    return rows


def _check_same(
    path: str, attributes: Mapping[str, str], rows: "list[tuple[str, np.ndarray]]"
) -> None:
    """Raise UserError unless the store ``path`` has the attributes, ids and vectors of this run.

    ``rows`` are pairs of an id and its vector.
    """
    import numpy as np

    from fairseq_mm.data.feature_store import FeatureStore

    store = FeatureStore(path)
    expected = [*attributes.items(), ("ids", [key for key, _ in rows])]
    actual = {**store.attributes, "ids": store.ids}
    differing = [name for name, value in expected if actual.get(name) != value]
    if not differing and not all(
        store.read(key).shape[-1] == len(vector)
        # Another device or number of threads changes the last digits.
        and np.allclose(store.read(key)[0], vector, atol=1e-5)
        for key, vector in rows
    ):
        differing = ["vectors"]
    if differing:
        raise UserError(
            f"{path}: exists already, and its {differing[0]} are not those of this checkpoint and "
            "data. Choose another --output, or --overwrite."
        )


def _write(
    args: argparse.Namespace,
    checkpoint: "Checkpoint",
    model: Any,
    rows: "list[tuple[str, np.ndarray]]",
    sentence_ids: list[str],
) -> None:
    from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
    from fairseq_mm.data.output_file import output_file
    from fairseq_mm.inference.extractor_provenance import VECTORS_EXTRACTOR

    # A store holds one row per id, and an image's id may look like a sentence's or a word's.
    twice = [key for key, count in Counter(key for key, _ in rows).items() if count > 1]
    if twice:
        raise UserError(
            f"{twice[0]!r}: is the id of an image and of a sentence or a word ({len(twice)} such "
            "ids): embed them into a store each, with --of."
        )
    # `retrieve` compares the digest with its checkpoint's.
    attributes = {"extractor": VECTORS_EXTRACTOR, "weights": checkpoint.digest}
    if os.path.exists(args.output) and not args.overwrite:
        _check_same(args.output, attributes, rows)
        print(f"{args.output}: is complete: all {len(rows)} vectors are in it", file=sys.stderr)
        return
    with FeatureStoreWriter(
        args.output,
        dim=model.embed_dim,
        dtype="float32",
        attributes=attributes,
        overwrite=args.overwrite,
        # all vectors are computed already, and an earlier run may have embedded other data
        resume=False,
    ) as writer:
        for key, vector in rows:
            writer.append(key, vector)
        if sentence_ids:  # first: a run killed in between is repeated
            path = f"{os.path.splitext(args.output)[0]}.{args.split}.visual_ids"
            with output_file(path) as file:
                file.writelines(f"{key}\n" for key in sentence_ids)
            print(f"{path}: {len(sentence_ids)} lines", file=sys.stderr)
        writer.finish()
    print(f"{args.output}: {len(rows)} vectors of {model.embed_dim}", file=sys.stderr)
