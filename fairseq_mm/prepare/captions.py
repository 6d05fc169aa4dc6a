"""Images and their captions, by split: what ``fairseq-mm prepare captions`` works on.

Readers of official releases (``release_*.py`` beside this file) and of one's own JSON lines make
a :class:`CaptionCorpus`; ``prepared_captions.py`` writes it as a data folder.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Optional

from fairseq_mm.data.input_files import SPLITS, check_id, parse_object, read_lines
from fairseq_mm.errors import UserError


@dataclass
class CaptionItem:
    """An image and its captions.

    Args:
        id: the image's key in the feature store.
        captions: as they were found, not tokenised.
        where: ``path:line`` (or the nearest to it), for messages.
    """

    id: str
    captions: list[str]
    where: str


@dataclass
class CaptionCorpus:
    """Items by split, and what was noticed while reading them.

    Args:
        name: of the data set, ``own`` for anybody's own.
        split: which division of the data set this is; figures of two divisions do not compare.
        items: split -> items, in the order of the release's list or file.
        files: what was read.
        published: split -> images that the division is known to have.
        exceptions: what departs from the release's rule -> ids concerned.
        notes: one-line remarks for whoever runs the preparation.
    """

    name: str
    split: str
    items: dict[str, list[CaptionItem]]
    files: list[str]
    published: dict[str, int] = field(default_factory=dict)
    exceptions: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def deviations(self) -> list[str]:
        """A line for each split that has not the published number of images."""
        return [
            f"{split}: {len(self.items[split]):,} images found, {expected:,} expected "
            f"({self.name}, split {self.split})"
            for split, expected in self.published.items()
            if split in self.items and len(self.items[split]) != expected
        ]


def check_once(items: dict[str, list[CaptionItem]]) -> None:
    """
    Raises:
        UserError: if an id stands twice, in one split or in two.
    """
    seen: dict[str, CaptionItem] = {}
    for split in items:
        for item in items[split]:
            if item.id in seen:
                raise UserError(
                    f"{item.where}: image {item.id} was given before, at {seen[item.id].where}; "
                    "put all captions of an image into one entry."
                )
            seen[item.id] = item


def _item_of(entry: dict, where: str, *, keys: str) -> tuple[CaptionItem, Optional[str]]:
    for name in ("image", "captions"):
        if name not in entry:
            raise UserError(
                f"{where}: field `{name}` is missing; found {', '.join(map(str, entry)) or 'none'}."
            )
    image, captions, split = entry["image"], entry["captions"], entry.get("split")
    if not isinstance(image, str):
        raise UserError(f"{where}: `image` must be text, but is {json.dumps(image)} instead.")
    if not isinstance(captions, list) or not all(isinstance(text, str) for text in captions):
        raise UserError(
            f"{where}: `captions` must be a list of texts, but is {json.dumps(captions)[:80]} "
            "instead."
        )
    if split is not None and split not in SPLITS:
        raise UserError(
            f"{where}: `split` must be train, valid or test, but is {json.dumps(split)} instead."
        )
    key = entry.get("id")
    if key is None:
        key = image if keys == "path" else PurePosixPath(image).name
    if not isinstance(key, str):
        raise UserError(f"{where}: `id` must be text, but is {json.dumps(key)} instead.")
    try:
        "".join([key, *captions]).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: text holds half a character (a lone surrogate).") from None
    return CaptionItem(check_id(key, where), captions, where), split


def read_captions_jsonl(
    paths: dict[Optional[str], list[Path]], *, keys: str = "name"
) -> CaptionCorpus:
    """Reads one's own data: ``{"image": "photo.jpg", "captions": ["...", ...]}``, one a line.

    Optional fields are ``split`` (train, valid or test) and ``id``, the key in the feature store.

    Args:
        paths: split -> files that hold it alone; None -> files whose lines may name a split and
            belong to train otherwise.
        keys: the default of ``id``: ``name``, the image's file name, or ``path``, ``image`` as
            it stands.

    Raises:
        UserError: ``path:line`` and what is wrong there, or if nothing is for training.
    """
    items: dict[str, list[CaptionItem]] = {}
    without_split: Optional[str] = None
    with_split: Optional[str] = None
    for file_split, files in paths.items():
        for path in files:
            for number, line in read_lines(path):
                if not line.strip():
                    continue
                where = f"{path}:{number}"
                item, split = _item_of(parse_object(line, where), where, keys=keys)
                if file_split is None:
                    without_split = without_split or (where if split is None else None)
                    with_split = with_split or (None if split is None else where)
                elif split not in (None, file_split):
                    raise UserError(
                        f"{where}: says split {split}, but the file is given as {file_split}."
                    )
                items.setdefault(split or file_split or "train", []).append(item)
    if without_split and with_split:
        raise UserError(
            f"{without_split}: names no split, but {with_split} does; give one to every line or "
            "to none."
        )
    check_once(items)
    if not items.get("train"):
        named = ", ".join(str(path) for files in paths.values() for path in files)
        raise UserError(f"{named}: no training images.")
    return CaptionCorpus(
        name="own",
        split="as given",
        items={split: items[split] for split in SPLITS if split in items},
        files=[str(path) for files in paths.values() for path in files],
    )


def draw_split(corpus: CaptionCorpus, split: str, size: int, *, seed: int) -> None:
    """Moves ``size`` training images, with all their captions, to ``split``.

    Images are ordered by a hash of seed and id, so the draw depends neither on the order of the
    file nor on the version of Python, and most of it stays when images are added.

    Raises:
        UserError: if the split has images already, or too few would be left for training.
    """
    if size == 0:
        return
    if corpus.items.get(split):
        raise UserError(
            f"--{split}-size {size}: the data has {len(corpus.items[split])} {split} images "
            "already."
        )
    train = corpus.items["train"]
    if not 0 < size < len(train):
        raise UserError(
            f"--{split}-size must be between 1 and {len(train) - 1} (of {len(train)} training "
            f"images one must be left), but is {size} instead."
        )

    def draw_order(item: CaptionItem) -> str:
        return hashlib.sha256(f"{seed}\0{item.id}".encode()).hexdigest()

    drawn = {item.id for item in sorted(train, key=draw_order)[:size]}
    corpus.items[split] = [item for item in train if item.id in drawn]
    corpus.items["train"] = [item for item in train if item.id not in drawn]
    corpus.items = {name: corpus.items[name] for name in SPLITS if name in corpus.items}
    if "train" in corpus.published:
        corpus.published = {**corpus.published, "train": corpus.published["train"] - size}
    corpus.split += f", {size} {split} images drawn with seed {seed}"
