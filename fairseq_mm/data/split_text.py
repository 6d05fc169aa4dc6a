"""Reads a split's words as they were before binarisation, for metrics and rankings.

``text/<split>.wp_source`` and ``text/<split>.wp_target`` hold prompts and their stories,
``text/<split>.txt`` visual stories, and ``<split>.stories.jsonl`` the album of each visual story.
"""

import os
from pathlib import Path
from typing import NamedTuple, Union

from fairseq_mm.data.input_files import check_line_counts, parse_object, read_lines
from fairseq_mm.data.split_files import read_visual_ids
from fairseq_mm.data.story_text import NUM_IMAGES, SEPARATOR
from fairseq_mm.errors import UserError

# names of Fan et al.'s release, which fairseq uses as languages
SOURCE, TARGET = "wp_source", "wp_target"
# fairseq's language modelling wants a folder of its own for each side of the pairs
LANGUAGE_MODELS = {"prompts": SOURCE, "stories": TARGET}

Folder = Union[str, os.PathLike]


class StorySplit(NamedTuple):
    """Prompts and their stories, in the same order, each as a list of words."""

    prompts: list[list[str]]
    stories: list[list[str]]


class VisualStorySplit(NamedTuple):
    """Visual stories of a split.

    Attributes:
        stories: Words of each story, sentence separators included.
        visual_ids: For each story, the keys of its images, separated by tabs.
        albums: For each story, the id of its album.
    """

    stories: list[list[str]]
    visual_ids: list[str]
    albums: list[str]


def side_path(data: Folder, split: str, side: str) -> Path:
    """Return the path of a split's prompts (``side`` is ``wp_source``) or stories (``wp_target``).

    ``data`` is a data folder. It may also be the subfolder ``prompts`` or ``stories`` for language
    models; the path is then in the folder around it.
    """
    folder = Path(data)
    # the folder of a language model has binarised text only; its words are in the folder around it
    if folder.name in LANGUAGE_MODELS and not (folder / "text").exists():
        folder = folder.parent
    return folder / "text" / f"{split}.{side}"


def story_text_path(data: Folder, split: str) -> Path:
    """Return the path of the file with the visual stories of a split, one per line, in the data
    folder ``data``."""
    return Path(data) / "text" / f"{split}.txt"


def read_side(data: Folder, split: str, side: str) -> list[list[str]]:
    """Read the words of each prompt or story of a split, see :func:`side_path`."""
    return _read_words(side_path(data, split, side), "`fairseq-mm prepare prompts` writes it")


def read_story_words(data: Folder, split: str) -> list[list[str]]:
    """Read the words of each visual story of a split in the data folder ``data``, sentence
    separators included."""
    what = "it holds the stories, one a line; `fairseq-mm prepare` writes it"
    return _read_words(story_text_path(data, split), what)


def read_story_split(data: Folder, split: str) -> StorySplit:
    """Read the prompts and stories of a split from a data folder.

    ``data`` is the data folder. It may also be one of the subfolders ``prompts`` and ``stories``
    for language models; both texts are then read from the folder around it.
    """
    sides = {str(side_path(data, split, x)): read_side(data, split, x) for x in (SOURCE, TARGET)}
    check_line_counts({path: len(words) for path, words in sides.items()})
    return StorySplit(*sides.values())


def read_albums(data: Folder, split: str) -> list[str]:
    """Read the album id of each visual story from ``<split>.stories.jsonl`` in the data folder
    ``data``."""
    path = Path(data) / f"{split}.stories.jsonl"
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
    """Read the visual stories of a split, with their images and albums."""
    stories = read_story_words(data, split)
    visual_path = Path(data) / f"{split}.visual_ids"
    visual_ids = read_visual_ids(visual_path)
    albums = read_albums(data, split)
    text_path = story_text_path(data, split)
    album_path = Path(data) / f"{split}.stories.jsonl"
    counts = {text_path: len(stories), visual_path: len(visual_ids), album_path: len(albums)}
    check_line_counts({str(path): count for path, count in counts.items()})
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
    texts = [line.split() for _, line in read_lines(path, what=what)]
    if not texts:
        raise UserError(f"{path}: must have a text a line, but is empty.")
    return texts
