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
from fairseq_mm.data.input_files import SPLITS, check_line_counts, read_json, read_lines
from fairseq_mm.data.split_files import read_references, read_visual_ids
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import TABLE, CaptionWriter
from fairseq_mm.prepare.corpus import Corpus, Example

# options in prepare.json that determine the tokens
_TOKENIZER = ("tokenizer", "keep_case", "keep_punctuation")


class JoinedWriter(CaptionWriter):
    """Writer of a data folder that joins other data folders.

    The captions of these folders are tokenized already, and are not tokenized again. Their
    untokenized captions become the references.
    """

    def tokenize_field(self, example: Example, name: str) -> list[list[str]]:
        return [line.split() for line in example.texts["tokens"]]


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
    if args.output.resolve() in [folder.resolve() for folder in args.folders]:
        raise UserError(f"--output {args.output}: must be none of the folders that are joined.")
    if corpus.write_features is not None and (args.output / "features.h5").exists():
        raise UserError(
            f"--output {args.output}: has a features.h5, which would be read in place of those of "
            "the joined folders; remove it, or give another folder."
        )
    return corpus


def join_folders(folders: Sequence[Path], splits_of: Optional[Path] = None) -> Corpus:
    """Join data folders of captions to a corpus.

    ``splits_of`` is one of the folders, whose valid and test splits are used (default: the first).
    """
    resolved = [folder.resolve() for folder in folders]
    if len(set(resolved)) < 2 or len(set(resolved)) < len(resolved):
        raise UserError(
            f"{', '.join(map(str, folders))}: must be two or more different data folders."
        )
    chosen = folders[0] if splits_of is None else splits_of
    if chosen.resolve() not in resolved:
        raise UserError(f"--splits-of {chosen}: must be one of {', '.join(map(str, folders))}.")
    # the joined text is written as it is: two tokenizations would mix in one dictionary
    settings = _load_tokenizer_options(folders)
    stores = _list_stores_by_folder(folders)
    splits = {folder: {s: _read_split(folder, s) for s in SPLITS} for folder in folders}
    division = f"train of all, valid and test of {chosen}"
    corpus = Corpus(TABLE, "joined", division, {}, list(map(str, folders)), options=settings)
    selected = {
        folder: {s: part for s, part in parts.items() if s == "train" or folder == chosen}
        for folder, parts in splits.items()
    }
    _prefix_repeated_ids(selected, corpus, stores)
    for split in SPLITS:
        examples = [image for parts in selected.values() for image in parts.get(split) or []]
        if examples:
            corpus.splits[split] = examples
    if stores:
        corpus.write_features = lambda output, partial: _write_stores(output, partial, stores)
    return corpus


def _load_tokenizer_options(folders: Sequence[Path]) -> dict[str, object]:
    options_by_folder: list[dict[str, Any]] = []
    for folder in folders:
        report = read_json(folder / "prepare.json")
        options = report.get("options") if isinstance(report, dict) else None
        if not isinstance(options, dict) or report.get("kind") != "captions":
            raise UserError(
                f"{folder}/prepare.json: must be of a folder of captions, made by prepare, but is "
                "not."
            )
        options_by_folder.append({name: options[name] for name in _TOKENIZER if name in options})
    for folder, settings in zip(folders, options_by_folder):
        if settings != options_by_folder[0]:
            raise UserError(
                f"{folder}: was made with {_format_options(settings)}, but {folders[0]} with "
                f"{_format_options(options_by_folder[0])}; prepare one of them anew."
            )
    return options_by_folder[0]


def _format_options(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def _list_stores_by_folder(folders: Sequence[Path]) -> dict[Path, list[tuple[str, str]]]:
    """Return the path of each feature store and the prefix of its ids, by folder.

    The result is empty if no folder has stores.
    """
    stores = {folder: listed_stores(str(folder)) for folder in folders}
    without = [folder for folder, listed in stores.items() if not listed]
    if len(without) == len(folders):
        return {}
    if without:
        other = next(folder for folder in folders if folder not in without)
        raise UserError(
            f"{without[0]}: has no features.h5, but {other} has; give one to each folder or to "
            "none."
        )
    # checks extractor and dimension; temporary prefixes avoid a complaint about repeated ids
    paths = [path for listed in stores.values() for path, _ in listed]
    FeatureStores([FeatureStore(path, prefix=f"{i}/") for i, path in enumerate(paths)])
    return stores


def _read_split(folder: Path, split: str) -> Optional[list[Example]]:
    """Read the images of a split with their captions; None if the folder lacks the split."""
    text, ids_path = folder / "text" / f"{split}.txt", folder / f"{split}.visual_ids"
    if not text.exists() and split != "train":
        return None
    references_path = folder / f"{split}.references.jsonl"
    ids, references = read_visual_ids(ids_path), read_references(references_path)
    lines = [line for _, line in read_lines(text)]
    check_line_counts({str(text): len(lines), str(ids_path): len(ids)})
    tokens: dict[str, list[str]] = {}
    for key, line in zip(ids, lines):
        tokens.setdefault(key, []).append(line)
    examples = []
    for key, image_lines in tokens.items():
        captions = references.get(key, [])
        # the n-th reference is the published form of the n-th line
        if len(captions) != len(image_lines):
            raise UserError(
                f"{references_path}: has {len(captions)} captions of {key}, but {ids_path} has "
                f"{len(image_lines)} lines of it."
            )
        texts = {"captions": captions, "tokens": image_lines}
        examples.append(Example(texts, f"{references_path}: {key}", key, [key]))
    return examples


def _prefix_repeated_ids(
    selected: dict[Path, dict[str, Optional[list[Example]]]],
    corpus: Corpus,
    stores: dict[Path, list[tuple[str, str]]],
) -> None:
    """Put the name of the folder before every id if an id occurs in two folders."""
    ids: dict[Path, set[str]] = {}
    for folder, splits in selected.items():
        ids[folder] = {str(image.id) for images in splits.values() for image in images or []}
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
            for example in examples or []:
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
