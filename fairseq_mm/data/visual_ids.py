"""``<split>.visual_ids``: which image, images or video belong to which line of text.

One line per example: the keys of its images or its video, separated by tabs. Lines with the same
keys are one item: five captions of an image, several stories of an album.
"""

from pathlib import Path

import numpy as np

from fairseq_mm.errors import UserError


def read_visual_ids(path: str) -> list[str]:
    """Lines of the file, one per example; a byte order mark is no part of the first key.

    Raises:
        UserError: if the file is missing, not UTF-8, or has an empty line or key.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; it names the image of each line of text.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be UTF-8 text, but is not ({error}).") from None
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if not all(line.split("\t")):
            raise UserError(
                f"{path}:{number}: must have one key, or several separated by tabs, but is "
                f"{line!r}."
            )
    return lines


def first_lines(visual_ids: list[str]) -> np.ndarray:
    """``[lines]`` bool, True at the first line of each item."""
    seen: set[str] = set()
    return np.array([not (line in seen or seen.add(line)) for line in visual_ids], dtype=bool)  # type: ignore[func-returns-value]
