"""Makes one data folder of several folders of captions, such as Flickr30k's and COCO's.

Each DIR is a folder of images with captions that fairseq-mm prepare made; all must have the same
tokenizer. Their training splits are joined in the order given, and get a common dictionary; the
valid and test splits come from the first folder, or from --splits-of. Feature stores are not
copied: features.json lists the features.h5 of each folder, which must all be of the same extractor.
If an id occurs in two folders, every id gets the name of its folder as a prefix, in the prepared
files and in features.json.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from fairseq_mm.data.feature_store import (
    STORE_LIST,
    FeatureStore,
    FeatureStores,
    listed_stores,
)
from fairseq_mm.data.record_split import CAPTIONS, Record, read_options
from fairseq_mm.data.records import open_split, split_names
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import CaptionWriter
from fairseq_mm.prepare.corpus import Corpus, Example

# options in prepare.json that determine the tokens
_TOKENIZER = ("tokenizer", "keep_case", "keep_punctuation")


class JoinedWriter(CaptionWriter):
    """Writer of a data folder that joins other data folders. Their captions are tokenized
    already."""

    def tokenize_field(self, example: Example, name: str) -> list[list[str]]:
        return [line.split() for line in example.texts["tokens"]]

    def record(self, example: Example) -> Record:
        record = super().record(example)
        return {**record, **({"tags": example.texts["tags"]} if "tags" in example.texts else {})}

    def needs_tokens(self, captions: list[str], tokens: list[list[str]]) -> bool:
        return (
            super().needs_tokens(captions, tokens) or list(map(self.tokenize, captions)) != tokens
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="Data folders.")
    parser.add_argument(
        "--splits-of",
        type=Path,
        metavar="DIR",
        help="Folder whose valid and test splits are taken (default: the first).",
    )


def read(args: argparse.Namespace) -> Corpus:
    corpus = join_folders(args.folders, args.splits_of)
    # the writer compares the tokens with what the folder's tokenizer makes of the captions
    options = read_options(args.folders[0])
    args.tokenizer = options.get("tokenizer", "whitespace")
    if args.tokenizer not in ("m_rnn", "ptb"):  # which have rules of their own
        args.keep_case, args.keep_punctuation = (options.get(x, True) for x in _TOKENIZER[1:])
    if corpus.write_features is not None and (args.output / "features.h5").exists():
        raise UserError(
            f"--output {args.output}: has a features.h5, which would be read in place of those of "
            "the joined folders; remove it, or give another folder."
        )
    return corpus


def join_folders(folders: Sequence[Path], splits_of: Optional[Path] = None) -> Corpus:
    """Join data folders of captions to a corpus.

    ``splits_of`` is the folder whose valid and test splits are used (default: the first folder).
    """
    chosen = folders[0] if splits_of is None else splits_of
    resolved = [folder.resolve() for folder in folders]
    is_chosen = chosen.resolve() in resolved
    if len(set(resolved)) < 2 or len(set(resolved)) < len(resolved) or not is_chosen:
        raise UserError(
            f"{', '.join(map(str, folders))}: must be two or more different data folders, one of "
            f"which is --splits-of {chosen}."
        )
    stores = {folder: listed_stores(str(folder)) for folder in folders}
    # checks extractor and dimension; temporary prefixes avoid a complaint about repeated ids
    paths = [path for listed in stores.values() for path, _ in listed]
    if paths:
        FeatureStores([FeatureStore(path, prefix=f"{i}/") for i, path in enumerate(paths)])
    selected = {
        folder: {
            split: _read_split(folder, split)
            for split in split_names(folder)
            if split == "train" or folder == chosen
        }
        for folder in folders
    }
    division = f"train of all, valid and test of {chosen}"
    files = [str(folder / f"{split}.jsonl") for folder, x in selected.items() for split in x]
    corpus = Corpus(CAPTIONS, "joined", division, {}, files)
    # the joined text is written as it is: two tokenizations would mix in one dictionary
    tokenizers = [
        {name: x for name, x in read_options(folder).items() if name in _TOKENIZER}
        for folder in folders
    ]
    for folder, tokenizer in zip(folders, tokenizers):
        if tokenizer != tokenizers[0]:
            raise UserError(
                f"{folder}: was made with {_format_options(tokenizer)}, but {folders[0]} with "
                f"{_format_options(tokenizers[0])}; prepare one of them anew."
            )
    _prefix_repeated_ids(selected, corpus, stores)
    corpus.splits = {
        split: [image for splits in selected.values() for image in splits.get(split, [])]
        for split in dict.fromkeys(("train", *selected[chosen]))
    }
    if any(stores.values()):
        corpus.write_features = lambda output, partial: _write_stores(output, partial, stores)
    return corpus


def _format_options(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in settings.items()) or "no tokenizer"


def _read_split(folder: Path, name: str) -> list[Example]:
    split = open_split(folder, name)
    if split.kind is not CAPTIONS or split.keys is None:
        raise UserError(f"{folder}: must be a folder of images with captions.")
    images: dict[str, Example] = {}
    lines = zip(split.keys, split.texts, split.iterate_tokens(), split.field("tags"))
    for key, text, words, tags in lines:
        image = images.setdefault(
            key, Example({"captions": [], "tokens": []}, f"{split.path}: {key}", key, [key])
        )
        image.texts["captions"].append(text)
        image.texts["tokens"].append(" ".join(words))
        if tags is not None:
            image.texts.setdefault("tags", []).append(tags)
    return list(images.values())


def _prefix_repeated_ids(
    selected: dict[Path, dict[str, list[Example]]],
    corpus: Corpus,
    stores: dict[Path, list[tuple[str, str]]],
) -> None:
    """Put the name of the folder before every id if an id occurs in two folders."""
    ids: dict[Path, set[str]] = {}
    for folder, splits in selected.items():
        ids[folder] = {str(image.id) for images in splits.values() for image in images}
        for path, prefix in stores.get(folder, []):
            # a store may have more images than the splits, and its ids must not collide either
            ids[folder].update(FeatureStore(path, prefix=prefix).ids)
    seen: set[str] = set()
    twice: set[str] = set()
    for folder_ids in ids.values():
        twice |= seen & folder_ids
        seen |= folder_ids
    if not twice:
        return
    names = [folder.resolve().name for folder in selected]
    if len(set(names)) < len(names):
        raise UserError(
            f"{', '.join(map(str, selected))}: the id {min(twice)!r} stands in two of them, and "
            "two have one name, which cannot tell them apart; rename a folder."
        )
    # every id and not only the repeated ones, so that an id shows where its image is from
    for folder, name in zip(selected, names):
        for examples in selected[folder].values():
            for example in examples:
                example.id = f"{name}/{example.id}"
                example.visual = [example.id]
        if folder in stores:
            stores[folder] = [(path, f"{name}/{prefix}") for path, prefix in stores[folder]]
    corpus.notes.append(
        f"{len(twice):,} ids stand in two folders, such as {min(twice)}: ids begin with the name "
        "of their folder. If these are the same images, some of valid or test may be in train."
    )


def _write_stores(output: Path, partial: Path, stores: dict[Path, list[tuple[str, str]]]) -> str:
    entries = [
        # relative, so that the folders can be moved together
        {"store": os.path.relpath(path, output), "prefix": prefix}
        for listed in stores.values()
        for path, prefix in listed
    ]
    path = partial / STORE_LIST
    path.write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return f"{STORE_LIST}: {len(entries)} feature stores, which stay where they are"
