"""The text of a split of prompts and stories: what was binarised, word by word."""

import os
from pathlib import Path
from typing import NamedTuple, Union

from fairseq_mm.errors import UserError

# the sides of the data folder
SOURCE, TARGET = "wp_source", "wp_target"
# folder of a language model -> the side that it is of
LANGUAGE_MODELS = {"prompts": SOURCE, "stories": TARGET}

Folder = Union[str, os.PathLike]


class StorySplit(NamedTuple):
    """
    Attributes:
        prompts: words of each.
        stories: words of each, those of the prompt at the same place.
    """

    prompts: list[list[str]]
    stories: list[list[str]]


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


def read_side(data: Folder, split: str, side: str) -> list[list[str]]:
    """Words of each line of :func:`side_path`.

    Raises:
        UserError: if the file cannot be read or has no line.
    """
    path = side_path(data, split, side)
    try:
        # not splitlines(): that would split at characters that may stand in a story
        lines = path.read_bytes().decode().split("\n")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); `fairseq-mm prepare prompts` writes it."
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be UTF-8 text, but is not ({error}).") from None
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise UserError(f"{path}: must have a text a line, but is empty.")
    return [line.split() for line in lines]


def read_story_split(data: Folder, split: str) -> StorySplit:
    """Both sides of a split.

    Raises:
        UserError: as :func:`read_side`, or if their line counts differ.
    """
    prompts, stories = (read_side(data, split, side) for side in (SOURCE, TARGET))
    if len(prompts) != len(stories):
        raise UserError(
            f"{side_path(data, split, SOURCE)} has {len(prompts)} lines, but "
            f"{side_path(data, split, TARGET)} has {len(stories)}: line i of one belongs to line "
            "i of the other."
        )
    return StorySplit(prompts, stories)
