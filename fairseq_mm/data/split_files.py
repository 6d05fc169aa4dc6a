"""Reads the files of a split that stand next to its binarised text.

An example is one line of the text.

``<split>.visual_ids``
    the keys of an example's images or its video in the feature store, separated by tabs, one line
    per example. Captions of the same image, or stories of the same images, have equal lines.
``<split>.references.jsonl``
    ``{"id": line of <split>.visual_ids, "references": [sentences]}``, one line for each distinct
    line of ``<split>.visual_ids``
``<split>.unknowns.jsonl``
    the words that ``<unk-0>``, ``<unk-1>``, ... stand for, as a JSON list, one line per example
``missing_images.txt``
    one file for all splits, optional: ids of story images that are not available (gone, unreadable,
    or not in the feature store). These images have no features, and become padding in the batch.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from fairseq_mm.data.input_files import SPLITS, parse_json, read_lines
from fairseq_mm.errors import UserError

MISSING_IMAGES = "missing_images.txt"


def _check_split_file(path: Union[str, os.PathLike]) -> None:
    """Raise UserError that names a folder's splits if the folder has no file of this split."""
    folder, name = os.path.split(os.fspath(path))
    split = name.partition(".")[0]
    if os.path.exists(path) or not os.path.isdir(folder or "."):
        return
    names = os.listdir(folder or ".")
    splits = {x.partition(".")[0] for x in names if x.endswith((".visual_ids", ".idx"))}
    if splits and not any(x.startswith(f"{split}.") for x in names):
        known = [x for x in SPLITS if x in splits] + sorted(splits.difference(SPLITS))
        raise UserError(f"{folder or '.'}: has no split {split!r}, but {', '.join(known)}.")


def read_visual_ids(path: Union[str, os.PathLike]) -> list[str]:
    """Read a file ``<split>.visual_ids``, which has one line per example."""
    _check_split_file(path)
    lines = []
    for number, line in read_lines(path, what="it names the image of each line of text"):
        if not all(line.split("\t")):
            raise UserError(
                f"{path}:{number}: must have one key, or several separated by tabs, but is "
                f"{line!r}."
            )
        lines.append(line)
    return lines


def first_lines(visual_ids: list[str]) -> np.ndarray:
    """Return ``[lines]`` bool, True for a line that no earlier line of ``visual_ids`` equals."""
    first: dict[str, int] = {}
    marks = (first.setdefault(line, i) == i for i, line in enumerate(visual_ids))
    return np.fromiter(marks, dtype=bool, count=len(visual_ids))


def read_references(path: Union[str, os.PathLike]) -> dict[str, list[str]]:
    """Read the references of a split; return a dictionary from a line of ``<split>.visual_ids`` to
    its references, in the order of the file."""
    _check_split_file(path)
    references: dict[str, list[str]] = {}
    for number, line in read_lines(path, what="it holds the references of each item"):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        entry = _parse_or_none(line, where)
        entry = entry if isinstance(entry, dict) else {}
        key, sentences = entry.get("id"), entry.get("references")
        if not isinstance(key, str) or not sentences or not _are_texts(sentences):
            raise UserError(
                f'{where}: must be {{"id": "...", "references": ["...", ...]}}, but is '
                f"{line[:80]!r}."
            )
        if key in references:
            raise UserError(f"{where}: the id {key!r} stands in an earlier line already.")
        references[key] = sentences
    return references


def read_published_captions(folder: Union[str, os.PathLike], split: str) -> Optional[list[str]]:
    """Read the caption of each line of a split, in its form before tokenization.

    The captions are the references in ``<split>.references.jsonl``. Return None if this file or
    ``<split>.visual_ids`` does not exist, or if an image has more or fewer references than lines.
    """
    ids_path = Path(folder) / f"{split}.visual_ids"
    references_path = Path(folder) / f"{split}.references.jsonl"
    if not (ids_path.exists() and references_path.exists()):
        return None
    keys, references = read_visual_ids(ids_path), read_references(references_path)
    if any(len(references.get(key, [])) != count for key, count in Counter(keys).items()):
        return None
    # lines of an image need not be neighbours, but its references are in the order of its lines
    captions = {key: iter(texts) for key, texts in references.items()}
    return [next(captions[key]) for key in keys]


def read_oov_words(path: Union[str, os.PathLike]) -> list[list[str]]:
    """Read, for each line of a split, the words that ``<unk-0>``, ``<unk-1>``, ... stand for. Raise
    UserError if the file is missing, or a line is no JSON list of words."""
    oov_words = []
    what = "it holds the words that <unk-0>, <unk-1>, ... stand for"
    for number, line in read_lines(path, what=what):
        words = _parse_or_none(line, f"{path}:{number}")
        if not _are_texts(words):
            raise UserError(
                f'{path}:{number}: must be a JSON list of words, ["...", ...], but is '
                f"{line[:80]!r}."
            )
        oov_words.append(words)
    return oov_words


def read_missing_images(folder: Union[str, os.PathLike]) -> frozenset[str]:
    """Read the ids of images without features from ``missing_images.txt``; without this file, there
    are none."""
    path = Path(folder) / MISSING_IMAGES
    if not path.exists():
        return frozenset()
    ids = []
    for number, line in read_lines(path):
        if not line.strip():
            raise UserError(f"{path}:{number}: must have the id of an image, but is empty.")
        ids.append(line)
    return frozenset(ids)


def _parse_or_none(line: str, where: str) -> Any:
    try:
        return parse_json(line, where)
    except UserError:
        return None  # the caller's message says how the line must look


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)
