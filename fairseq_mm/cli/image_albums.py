"""``fairseq-mm tell``: the five images of each story, from the command line, a file of albums, a
feature store or a data folder."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fairseq_mm.data.visual_story_text import NUM_IMAGES, split_sentences
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    import argparse

    from fairseq_mm.data.feature_store import FeatureStores
    from fairseq_mm.extract.media_list import MediaFile

# stands in the place of an image that is missing
NO_IMAGE = "-"


class Album(NamedTuple):
    """What a story is told of.

    Attributes:
        item: number of the story, which decides its draws.
        id: of its JSONL: a line of ``visual_ids``, the album's id or the paths of its images.
        where: for messages.
        keys: of its images, or their paths; None for one that is missing.
        images: where they lie, as ``keys``; empty where their features are in a store.
        references: what people have told, sentence by sentence.
    """

    item: int
    id: str
    where: str
    keys: "list[Optional[str]]"
    images: "list[Optional[MediaFile]]"
    references: list[list[list[str]]]

    @property
    def names(self) -> list[str]:
        return [NO_IMAGE if key is None else key for key in self.keys]


class Stored(NamedTuple):
    """Albums whose features are in a store."""

    albums: list[Album]
    store: "FeatureStores"


def image_album(args: "argparse.Namespace") -> list[Album]:
    """Albums of the images of the command line and of ``--albums``.

    Raises:
        UserError: if an album has not five images, or a file of albums cannot be read.
    """
    from fairseq_mm.extract.media_list import MediaFile

    count = args.n or 1
    found: list[tuple[str, str, list[str]]] = []
    if args.inputs:
        found.append(("", "", args.inputs))
    for path in args.albums:
        found += _albums_of(path)
    albums = []
    for number, (key, where, paths) in enumerate(found):
        _check_count(paths, where)
        keys = [None if path == NO_IMAGE else path for path in paths]
        images = [None if key is None else MediaFile(key, key) for key in keys]
        for again in range(count):
            item = args.first_id + number * count + again
            albums.append(Album(item, key or "\t".join(paths), where, keys, images, []))
    return albums


def _albums_of(path: str) -> Iterator[tuple[str, str, list[str]]]:
    """Id, place and paths of each line of a file of albums."""
    from fairseq_mm.data.input_files import read_lines

    folder = os.path.dirname(path)
    is_empty = True
    for number, line in read_lines(Path(path)):
        if not line.strip():
            continue
        is_empty = False
        where = f"{path}:{number}"
        try:
            entry = json.loads(line)
            images, key = entry["images"], entry.get("id", "")
            if isinstance(key, int):
                key = str(key)
        except (ValueError, TypeError, KeyError, AttributeError):
            images, key = None, ""
        is_list = isinstance(images, list) and all(isinstance(x, str) and x for x in images)
        if not is_list or not isinstance(key, str):
            raise UserError(
                f'{where}: must be {{"images": [five paths]}}, with an "id" if you like, but is '
                f"{line[:80]!r}."
            )
        paths = [x if x == NO_IMAGE else os.path.join(folder, x) for x in images]
        yield key, where, paths
    if is_empty:
        raise UserError(f"{path}: must have albums, one a line, but is empty.")


def stored_by_ids(args: "argparse.Namespace") -> Stored:
    """The album of ``--ids`` in the stores of ``--features``.

    Raises:
        UserError: if there are not five ids, or one is not in the stores.
    """
    from fairseq_mm.data.feature_store import open_features

    _check_count(args.ids, "--ids")
    store = open_features(args.features.split(os.pathsep))
    keys = [None if key == NO_IMAGE else key for key in args.ids]
    for key in keys:
        if key is not None:
            store.rows_of(key)
    count = args.n or 1
    items = range(args.first_id, args.first_id + count)
    return Stored([Album(i, "\t".join(args.ids), "", keys, [], []) for i in items], store)


def stored_of_split(args: "argparse.Namespace") -> Stored:
    """The photo sequences of a split, each once, with the stories that people have told.

    Raises:
        UserError: if the data folder is not complete, or lacks a line of ``--line``.
    """
    from fairseq_mm.data.feature_store import open_features
    from fairseq_mm.data.missing_images import read_missing_images
    from fairseq_mm.data.multimodal_dataset import check_line_counts
    from fairseq_mm.data.visual_ids import first_lines, read_visual_ids
    from fairseq_mm.data.visual_story_split import read_story_words, story_text_path

    path = os.path.join(args.data, f"{args.split}.visual_ids")
    lines = read_visual_ids(path)
    words = read_story_words(args.data, args.split)
    check_line_counts({str(story_text_path(args.data, args.split)): len(words), path: len(lines)})
    references: dict[str, list[list[list[str]]]] = {}
    for line, story in zip(lines, words):
        references.setdefault(line, []).append(
            [sentence.split() for sentence in split_sentences(" ".join(story))]
        )
    if args.line:
        outside = [number for number in args.line if not 0 <= number < len(lines)]
        if outside:
            raise UserError(
                f"--line {outside[0]}: {path} has lines 0 to {len(lines) - 1}, counted from 0."
            )
        numbers = list(dict.fromkeys(args.line))
    else:
        numbers = [number for number, is_first in enumerate(first_lines(lines)) if is_first]
    numbers = numbers[: args.limit]
    named = args.features or os.path.join(args.data, "features.h5")
    store = open_features(named.split(os.pathsep))
    missing = read_missing_images(args.data)
    albums = []
    for number in numbers:
        where, keys = f"{path}:{number + 1}", lines[number].split("\t")
        _check_count(keys, where)
        known: list[Optional[str]] = []
        for key in keys:
            if key in missing:
                known.append(None)
                continue
            try:
                store.rows_of(key)
            except UserError as error:
                raise UserError(f"{where}: {error}") from None
            known.append(key)
        albums.append(Album(number, lines[number], where, known, [], references[lines[number]]))
    return Stored(albums, store)


def check_rows(stored: Stored, teller: Any) -> None:
    """
    Raises:
        UserError: if the teller was trained on other features than the store's.
    """
    store, rows = stored.store, teller.rows_per_image
    teller.check_features(store.attributes, store.dim, store.path)
    for album in stored.albums:
        for key in album.keys:
            if key is not None and store.rows_of(key) != rows:
                raise UserError(
                    f"{store.path}: image {key!r} has {_rows(store.rows_of(key))} of features, "
                    f"but {teller.files[0]} was trained on {rows} an image."
                )


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number} rows"


def _check_count(images: list[str], where: str) -> None:
    if len(images) != NUM_IMAGES:
        verb = "is 1" if len(images) == 1 else f"are {len(images)}"
        raise UserError(
            f"{where}{': ' if where else ''}a story is told of {NUM_IMAGES} images, but there "
            f"{verb}."
        )
    if all(image == NO_IMAGE for image in images):
        raise UserError(
            f"{where}{': ' if where else ''}all {NUM_IMAGES} images are missing: there is "
            "nothing to tell of."
        )
