"""A split of visual stories as its measures read it: words, images and albums of each story."""

import json
import os
from pathlib import Path
from typing import NamedTuple, Union

from fairseq_mm.data.visual_ids import read_visual_ids
from fairseq_mm.data.visual_story_text import NUM_IMAGES, SEPARATOR
from fairseq_mm.errors import UserError

Folder = Union[str, os.PathLike]


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


def story_text_path(data: Folder, split: str) -> Path:
    """Where the stories of a split lie, one a line."""
    return Path(data) / "text" / f"{split}.txt"


def read_story_words(data: Folder, split: str) -> list[list[str]]:
    """Words of each story, the separators among them.

    Raises:
        UserError: if the file cannot be read or has no line.
    """
    path = story_text_path(data, split)
    lines = _lines_of(path, "it holds the stories, one a line; `fairseq-mm prepare` writes it")
    if not lines:
        raise UserError(f"{path}: must have a story a line, but is empty.")
    # not splitlines(): that would split at characters that may stand in a story
    return [line.split() for line in lines]


def read_albums(data: Folder, split: str) -> list[str]:
    """Id of each line's album, from ``<split>.stories.jsonl``.

    Raises:
        UserError: if the file cannot be read, or a line names no album.
    """
    path = Path(data) / f"{split}.stories.jsonl"
    albums = []
    for number, line in enumerate(_lines_of(path, "it names the album of each story"), start=1):
        try:
            entry = json.loads(line)
            albums.append(str(entry["album_id"]))
        except (ValueError, TypeError, KeyError):
            raise UserError(
                f'{path}:{number}: must be {{"story_id": "...", "album_id": "..."}}, but is '
                f"{line[:80]!r}."
            ) from None
    return albums


def read_visual_story_split(data: Folder, split: str) -> VisualStorySplit:
    """Stories, images and albums of a split.

    Raises:
        UserError: if a file cannot be read, their line counts differ, or a story has not five
            sentences or images.
    """
    stories = read_story_words(data, split)
    visual_path = Path(data) / f"{split}.visual_ids"
    visual_ids = read_visual_ids(str(visual_path))
    albums = read_albums(data, split)
    text_path = story_text_path(data, split)
    album_path = Path(data) / f"{split}.stories.jsonl"
    for path, count in ((visual_path, len(visual_ids)), (album_path, len(albums))):
        if count != len(stories):
            raise UserError(
                f"{text_path} has {len(stories)} lines, but {path} has {count}: they must agree "
                "line by line."
            )
    for number, (words, key) in enumerate(zip(stories, visual_ids), start=1):
        sentences, images = words.count(SEPARATOR) + 1, len(key.split("\t"))
        if sentences != NUM_IMAGES or images != NUM_IMAGES:
            raise UserError(
                f"{text_path}:{number}: a story has {NUM_IMAGES} sentences and images, but "
                f"this one has {sentences} sentences ({SEPARATOR} between them) and {images} "
                f"images in {visual_path.name}."
            )
    return VisualStorySplit(stories, visual_ids, albums)


def _lines_of(path: Path, meaning: str) -> list[str]:
    try:
        lines = path.read_bytes().decode().split("\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {meaning}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be UTF-8 text, but is not ({error}).") from None
    if lines[-1] == "":
        lines.pop()
    return lines
