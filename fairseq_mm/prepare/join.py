"""Makes one data folder of several folders of captions, such as Flickr30k's and COCO's.

Each DIR is a folder that fairseq-mm prepare made of images with captions, all with one tokenizer.
Their training splits are joined in the order given, and a dictionary is made of all of them; the
valid and the test split are those of the first folder, or of --splits-of. Feature stores are not
copied: features.json lists the features.h5 of each folder, which must be of one extractor. Where an
id stands in two folders, the name of its folder is put before every id, here and in features.json.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from fairseq_mm.data.feature_store import FeatureStore, FeatureStores, listed_stores
from fairseq_mm.data.input_files import SPLITS, read_json, read_lines
from fairseq_mm.data.prepared_files import STORE_LIST, check_prepared_file
from fairseq_mm.data.split_files import read_references, read_visual_ids
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import TABLE, CaptionWriter
from fairseq_mm.prepare.corpus import Corpus, Example

# of prepare.json's options: they say what is a token
_TOKENIZER = ("tokenizer", "keep_case", "keep_punctuation")


class JoinedWriter(CaptionWriter):
    """Writes captions that are split into tokens already, beside the captions as published."""

    def tokens_of(self, example: Example, name: str) -> list[list[str]]:
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
    """
    Args:
        folders: made by ``fairseq-mm prepare``, of images with captions.
        splits_of: the one of them whose valid and test splits are taken, the first by default.

    Raises:
        UserError: if a folder is no such folder or is given twice, tokenizers or extractors differ,
            or some folders have features and others do not.
    """
    resolved = [folder.resolve() for folder in folders]
    if len(set(resolved)) < 2 or len(set(resolved)) < len(resolved):
        raise UserError(
            f"{', '.join(map(str, folders))}: must be two or more different data folders."
        )
    chosen = folders[0] if splits_of is None else splits_of
    if chosen.resolve() not in resolved:
        raise UserError(f"--splits-of {chosen}: must be one of {', '.join(map(str, folders))}.")
    settings = _tokenizer_of(folders)
    stores = _stores_of(folders)
    splits = {folder: {s: _read_split(folder, s) for s in SPLITS} for folder in folders}
    corpus = Corpus(
        TABLE,
        "joined",
        f"train of all, valid and test of {chosen}",
        {},
        [str(folder) for folder in folders],
        options=settings,
    )
    taken = {
        folder: {s: found for s, found in of.items() if s == "train" or folder == chosen}
        for folder, of in splits.items()
    }
    _tell_apart(taken, corpus, stores)
    for split in SPLITS:
        found = [one for of in taken.values() for one in of.get(split) or []]
        if found:
            corpus.splits[split] = found
    if stores:
        corpus.write_features = lambda output, partial: _list_stores(output, partial, stores)
    return corpus


def _tokenizer_of(folders: Sequence[Path]) -> dict[str, object]:
    found: list[dict[str, Any]] = []
    for folder in folders:
        report = read_json(folder / "prepare.json")
        options = report.get("options") if isinstance(report, dict) else None
        if not isinstance(options, dict) or report.get("kind") != "captions":
            raise UserError(
                f"{folder}/prepare.json: must be of a folder of captions, made by prepare, but is "
                "not."
            )
        found.append({name: options[name] for name in _TOKENIZER if name in options})
    for folder, settings in zip(folders, found):
        if settings != found[0]:
            raise UserError(
                f"{folder}: was made with {_said(settings)}, but {folders[0]} with "
                f"{_said(found[0])}; prepare one of them anew."
            )
    return found[0]


def _said(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def _stores_of(folders: Sequence[Path]) -> dict[Path, list[tuple[str, str]]]:
    """Folder -> path and prefix of its stores; nothing if there are none at all."""
    stores = {folder: listed_stores(str(folder)) for folder in folders}
    without = [folder for folder, found in stores.items() if not found]
    if len(without) == len(folders):
        return {}
    if without:
        having = next(folder for folder in folders if folder not in without)
        raise UserError(
            f"{without[0]}: has no features.h5, but {having} has; give one to each folder or to "
            "none."
        )
    # one extractor and dimension; ids are told apart later
    paths = [path for found in stores.values() for path, _ in found]
    FeatureStores([FeatureStore(path, prefix=f"{i}/") for i, path in enumerate(paths)])
    return stores


def _read_split(folder: Path, split: str) -> Optional[list[Example]]:
    """Images of a split with their captions and tokens; None where there is no such split."""
    text, ids_path = folder / "text" / f"{split}.txt", folder / f"{split}.visual_ids"
    if not text.exists() and split != "train":
        return None
    if not ids_path.exists() and text.exists():
        raise UserError(f"{ids_path}: no such file; text alone cannot be joined with images.")
    references_path = folder / f"{split}.references.jsonl"
    ids, references = read_visual_ids(ids_path), read_references(references_path)
    check_prepared_file(text)
    lines = [line for _, line in read_lines(text)]
    from fairseq_mm.data.binarised_text import check_line_counts

    check_line_counts({str(text): len(lines), str(ids_path): len(ids)})
    tokens: dict[str, list[str]] = {}
    for key, line in zip(ids, lines):
        tokens.setdefault(key, []).append(line)
    examples = []
    for key, own in tokens.items():
        captions = references.get(key, [])
        if len(captions) != len(own):
            raise UserError(
                f"{references_path}: has {len(captions)} captions of {key}, but {ids_path} has "
                f"{len(own)} lines of it."
            )
        texts = {"captions": captions, "tokens": own}
        examples.append(Example(texts, f"{references_path}: {key}", key, [key]))
    return examples


def _tell_apart(
    taken: dict[Path, dict[str, Optional[list[Example]]]],
    corpus: Corpus,
    stores: dict[Path, list[tuple[str, str]]],
) -> None:
    """Puts names of folders before ids, if an id of a split or of a store stands in two of them."""
    ids: dict[Path, set[str]] = {}
    for folder, splits in taken.items():
        ids[folder] = {str(one.id) for found in splits.values() for one in found or []}
        for path, prefix in stores.get(folder, []):
            ids[folder].update(FeatureStore(path, prefix=prefix).ids)
    seen: set[str] = set()
    twice: set[str] = set()
    for found in ids.values():
        twice |= seen & found
        seen |= found
    if not twice:
        return
    names = [folder.resolve().name for folder in taken]
    if len(set(names)) < len(names):
        raise UserError(
            f"{', '.join(map(str, taken))}: the id {min(twice)!r} stands in two of them, and two "
            "have one name, which cannot tell them apart; rename a folder."
        )
    for folder, name in zip(taken, names):
        for found_examples in taken[folder].values():
            for one in found_examples or []:
                one.id = f"{name}/{one.id}"
                one.visual = [one.id]
        if folder in stores:
            stores[folder] = [(path, f"{name}/{prefix}") for path, prefix in stores[folder]]
    corpus.notes.append(
        f"{len(twice):,} ids stand in two folders, such as {min(twice)}: ids begin with the name "
        "of their folder. If these are the same images, some of valid or test may be in train."
    )


def _list_stores(output: Path, partial: Path, stores: dict[Path, list[tuple[str, str]]]) -> str:
    entries = [
        {"store": os.path.relpath(path, output), "prefix": prefix}
        for found in stores.values()
        for path, prefix in found
    ]
    path = partial / STORE_LIST
    path.write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return f"{STORE_LIST}: {len(entries)} feature stores, which stay where they are"
