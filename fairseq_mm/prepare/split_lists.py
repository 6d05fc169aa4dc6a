"""What readers of releases share: entries of JSON files, and lists of images by split."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Optional

from fairseq_mm.data.input_files import SPLITS, read_lines
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.corpus import Corpus, Example

_IMAGE_NAME = re.compile(r".+\.(?:jpe?g|png)", re.IGNORECASE)


def list_entries(content: object, path: Path, name: str) -> Iterator[tuple[str, Any]]:
    """``path: name[number]`` and the entry there, of a list in a JSON file.

    Raises:
        UserError: if the content has no such list.
    """
    entries = content.get(name) if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise UserError(f"{path}: must be a JSON object with a list `{name}`.")
    for number, entry in enumerate(entries):
        yield f"{path}: {name}[{number}]", entry


@contextmanager
def fields_at(where: str) -> Iterator[None]:
    """Names the place where an entry lacks a field, or has one of another type."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{where}: field is missing or malformed ({error}).") from None


def read_id_list(path: Path, *, id_of: Optional[Callable[[str], str]] = None) -> list[str]:
    """Ids of images, one a line.

    Args:
        path: the list.
        id_of: line -> id, where they differ.

    Raises:
        UserError: if an image stands twice.
    """
    line_of: dict[str, int] = {}
    for number, line in read_lines(path):
        name = line.strip()
        if not name:
            continue
        key = id_of(name) if id_of else name
        if key in line_of:
            raise UserError(
                f"{path}:{number}: image {key} was given before, at line {line_of[key]}."
            )
        line_of[key] = number
    return list(line_of)


def split_files(pairs: list[str]) -> dict[str, Path]:
    """Reads ``SPLIT=FILE`` arguments of ``--split-ids``.

    Raises:
        UserError: if one has another form, an unknown split or one given before.
    """
    files: dict[str, Path] = {}
    for pair in pairs:
        split, _, file = pair.partition("=")
        if split not in SPLITS or not file:
            raise UserError(
                f"--split-ids must be train=FILE, valid=FILE or test=FILE, but is {pair} instead."
            )
        if split in files:
            raise UserError(f"--split-ids gives {split} twice.")
        files[split] = Path(file)
    return files


def select_splits(
    corpus: Corpus, captions: dict[str, Example], lists: dict[str, list[str]]
) -> None:
    """Fills ``corpus.splits`` by lists of images, and notes what does not fit.

    Args:
        corpus: gets the examples, and as exceptions the listed images without captions, the images
            with captions that no list names, and names that are no image's.
        captions: id -> example.
        lists: split -> ids.

    Raises:
        UserError: if no image of a list has captions, or one is in two lists.
    """
    listed = set()
    for split, ids in lists.items():
        examples = [captions[key] for key in ids if key in captions]
        corpus.splits[split] = examples
        if not examples:
            raise UserError(
                f"{corpus.files[0]}: has captions of none of the {len(ids):,} images listed for "
                f"{split}" + (f", such as {ids[0]}." if ids else ".")
            )
        listed.update(ids)
    exceptions = {
        "listed without captions": [key for key in listed if key not in captions],
        "captions without a split": [key for key in captions if key not in listed],
        "not an image's name": [key for key in captions if not _IMAGE_NAME.fullmatch(key)],
    }
    corpus.exceptions.update({what: sorted(ids) for what, ids in exceptions.items() if ids})
    corpus.check_ids()
