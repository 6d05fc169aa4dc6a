"""The text of a split as measures and rankings read it: word by word, before it was binarised.

``text/<split>.wp_source`` and ``text/<split>.wp_target`` hold prompts and their stories,
``text/<split>.txt`` visual stories, and ``<split>.stories.jsonl`` the album of each of those.
"""

import os
from pathlib import Path
from typing import NamedTuple, Union

from fairseq_mm.data.input_files import parse_object, read_lines
from fairseq_mm.data.prepared_files import check_prepared_file
from fairseq_mm.data.split_files import read_visual_ids
from fairseq_mm.data.visual_story_text import NUM_IMAGES, SEPARATOR
from fairseq_mm.errors import UserError

# the sides of a data folder of prompts
SOURCE, TARGET = "wp_source", "wp_target"
# folder of a language model -> the side that it is of
LANGUAGE_MODELS = {"prompts": SOURCE, "stories": TARGET}

Folder = Union[str, os.PathLike]


class StorySplit(NamedTuple):
    """
    Attributes:
        prompts: words of each.
        stories: words of each, those of the prompt at the same index.
    """

    prompts: list[list[str]]
    stories: list[list[str]]


class VisualStorySplit(NamedTuple):
    """
    Attributes:
        stories: words of each line, the separators among them.
        visual_ids: images of each line, as in the file.
        albums: id of each line's album.
    """

    stories: list[list[str]]
    visual_ids: list[str]
    albums: list[str]


def side_path(data: Folder, split: str, side: str) -> Path:
    """Where the text of one side of a split lies.

    Args:
        data: a data folder, or one of the language models' folders inside it.
        split: train, valid or test.
        side: ``wp_source`` or ``wp_target``.
    """
    folder = Path(data)
    if folder.name in LANGUAGE_MODELS and not (folder / "text").exists():
        folder = folder.parent
    return folder / "text" / f"{split}.{side}"


def story_text_path(data: Folder, split: str) -> Path:
    """Where the visual stories of a split lie, one a line."""
    return Path(data) / "text" / f"{split}.txt"


def read_side(data: Folder, split: str, side: str) -> list[list[str]]:
    """Words of each line of :func:`side_path`.

    Raises:
        UserError: if the file cannot be read or has no line.
    """
    return _read_words(side_path(data, split, side), "`fairseq-mm prepare prompts` writes it")


def read_story_words(data: Folder, split: str) -> list[list[str]]:
    """Words of each visual story, the separators among them.

    Raises:
        UserError: if the file cannot be read or has no line.
    """
    what = "it holds the stories, one a line; `fairseq-mm prepare` writes it"
    return _read_words(story_text_path(data, split), what)


def read_story_split(data: Folder, split: str) -> StorySplit:
    """Prompts and stories of a split.

    Raises:
        UserError: as :func:`read_side`, or if their line counts differ.
    """
    prompts, stories = (read_side(data, split, side) for side in (SOURCE, TARGET))
    paths = [side_path(data, split, side) for side in (SOURCE, TARGET)]
    _check_equal(paths[0], len(prompts), paths[1], len(stories))
    return StorySplit(prompts, stories)


def read_albums(data: Folder, split: str) -> list[str]:
    """Id of each line's album, from ``<split>.stories.jsonl``.

    Raises:
        UserError: if the file cannot be read, or a line names no album.
    """
    path = Path(data) / f"{split}.stories.jsonl"
    check_prepared_file(path)
    albums = []
    for number, line in read_lines(path, what="it names the album of each story"):
        try:
            albums.append(str(parse_object(line, "")["album_id"]))
        except (UserError, KeyError):
            raise UserError(
                f'{path}:{number}: must be {{"story_id": "...", "album_id": "..."}}, but is '
                f"{line[:80]!r}."
            ) from None
    return albums


def read_visual_story_split(data: Folder, split: str) -> VisualStorySplit:
    """Visual stories, images and albums of a split.

    Raises:
        UserError: if a file cannot be read, their line counts differ, or a story has not five
            sentences or images.
    """
    stories = read_story_words(data, split)
    visual_path = Path(data) / f"{split}.visual_ids"
    visual_ids = read_visual_ids(visual_path)
    albums = read_albums(data, split)
    text_path = story_text_path(data, split)
    _check_equal(text_path, len(stories), visual_path, len(visual_ids))
    _check_equal(text_path, len(stories), Path(data) / f"{split}.stories.jsonl", len(albums))
    for number, (words, key) in enumerate(zip(stories, visual_ids), start=1):
        sentences, images = words.count(SEPARATOR) + 1, len(key.split("\t"))
        if sentences != NUM_IMAGES or images != NUM_IMAGES:
            raise UserError(
                f"{text_path}:{number}: a story has {NUM_IMAGES} sentences and images, but "
                f"this one has {sentences} sentences ({SEPARATOR} between them) and {images} "
                f"images in {visual_path.name}."
            )
    return VisualStorySplit(stories, visual_ids, albums)


def _read_words(path: Path, what: str) -> list[list[str]]:
    check_prepared_file(path)
    texts = [line.split() for _, line in read_lines(path, what=what)]
    if not texts:
        raise UserError(f"{path}: must have a text a line, but is empty.")
    return texts


def _check_equal(path: Path, count: int, other: Path, count_of_other: int) -> None:
    if count != count_of_other:
        raise UserError(
            f"{path} has {count} lines, but {other} has {count_of_other}: they must agree line by "
            "line."
        )
