"""Embeds images, sentences and words, and writes their vectors to a feature store.

  fairseq-mm embed DATA --checkpoint best.pt --split train --output vectors.h5
  fairseq-mm embed DATA --checkpoint best.pt --of words --output words.h5

The store has one vector of length 1 per image, sentence or word. Images keep their ids, the id of
a sentence is SPLIT:LINE (lines are counted from 0, as in fairseq-generate), and the id of a word
is word:WORD; a word is embedded as a sentence of one word. Sentences and words need no features, so
DATA may contain only text (fairseq-mm prepare captions --without-images). The command also writes
vectors.SPLIT.jsonl, a record of each line of the split with the id of its sentence. A data folder
of dict.txt and this file as SPLIT.jsonl trains a model (sc_nlm) on the vector of each sentence, not
of its image.
"""

import argparse
import json
import os
import sys
from typing import Any

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import FLAG, Rows
from fairseq_mm.cli.run_set_up import register_quietly

_IMAGES_PER_BATCH = 128
_ITEMS = ("images", "sentences", "words")
_ROWS: Rows = {
    "--of": (
        "Items to embed (default: images and sentences).",
        {"nargs": "+", "choices": _ITEMS, "default": [*_ITEMS[:2]]},
    ),
    "--overwrite": ("Replace an existing store at --output.", FLAG),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="Data folder, made by fairseq-mm prepare.")
    arguments.add(
        parser,
        *("checkpoint", "split", "features", "output", "device"),
        checkpoint={"help": "Checkpoint of the embedding model, or folder with one."},
        split={"default": "valid", "help": "Split to embed (default: valid)."},
        features={"help": "Feature store of the images (default: features.h5 in DATA)."},
        output={"required": True, "help": "Feature store to write."},
    )
    arguments.add_rows(parser, _ROWS)


def run(args: argparse.Namespace) -> None:
    arguments.check(args)
    register_quietly()
    from fairseq_mm.data.feature_store import open_folder_features
    from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
    from fairseq_mm.data.output_file import output_file
    from fairseq_mm.data.records import open_split
    from fairseq_mm.extract.weights import VECTORS_EXTRACTOR
    from fairseq_mm.inference.checkpoint import Checkpoint
    from fairseq_mm.inference.embedder import Embedder

    checkpoint = Checkpoint.open(args.checkpoint)
    checkpoint.check_command("rank")
    embedder = Embedder(checkpoint.build(args.device))
    dim, dictionary = embedder.models[0].embed_dim, embedder.task.target_dictionary
    with FeatureStoreWriter(
        args.output,
        dim=dim,
        dtype="float32",
        # `retrieve` compares the digest with its checkpoint's.
        attributes={"extractor": VECTORS_EXTRACTOR, "weights": checkpoint.digest},
        overwrite=args.overwrite,
        # an earlier run may have embedded other data
        resume=False,
    ) as writer:
        split: Any = open_split(args.data, args.split) if set(args.of) != {"words"} else None
        if "images" in args.of:
            keys = list(dict.fromkeys(split.keys or ()))
            features = open_folder_features(args.data, args.features)
            checkpoint.check_features(features)
            for start in range(0, len(keys), _IMAGES_PER_BATCH):
                part = keys[start : start + _IMAGES_PER_BATCH]
                vectors = embedder.embed_features([features.read(key) for key in part])
                for key, vector in zip(part, vectors):
                    writer.append(key, vector)
        ids: list[str] = []
        if "sentences" in args.of:
            sentences = split.tokens()
            unknown = {word for words in sentences for word in words} - dictionary.indices.keys()
            if unknown:
                print(
                    f"{args.data}: {len(unknown):,} words are not in the vocabulary of "
                    f"{checkpoint.path}, and are embedded as <unk>",
                    file=sys.stderr,
                )
            ids = [f"{args.split}:{line}" for line in range(len(sentences))]
            numbers = [[dictionary.index(word) for word in words] for words in sentences]
            for key, vector in zip(ids, embedder.embed_tokens(numbers)):
                writer.append(key, vector)
        if "words" in args.of:
            indices = range(dictionary.nspecial, len(dictionary))
            vectors = embedder.embed_tokens([[number] for number in indices])
            for number, vector in zip(indices, vectors):
                writer.append(f"word:{dictionary[number]}", vector)
        if ids:  # first: a run killed in between is repeated
            path = f"{os.path.splitext(args.output)[0]}.{args.split}.jsonl"
            lines = zip(ids, split.texts, sentences, split.field("tags"))
            with output_file(path) as file:
                for key, text, words, tags in lines:
                    record = {"id": key, "captions": [text], "tokens": [" ".join(words)]}
                    if tags is not None:
                        record["tags"] = [tags]
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
            print(f"{path}: {len(ids)} records", file=sys.stderr)
        number = len(writer.done)
        writer.finish()
    print(f"{args.output}: {number} vectors of {dim}", file=sys.stderr)
