"""Files of the demo's collections, and verdicts on generated texts."""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_mm.data.input_files import read_objects
from fairseq_mm.data.output_file import write_file
from fairseq_mm.errors import UserError

SHOWN = "shown.jsonl"  # content of each item, to check texts


class Verdict(NamedTuple):
    """Verdict on one generated text.

    Attributes:
        key: Name of the item that the text belongs to.
        right: Whether the text has exactly the facts of the item.
        kind: Kind of the item, a key of its task's ``KINDS``; empty if there are no kinds.
    """

    key: str
    right: bool
    kind: str = ""


def numbered(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (split, number from 1) of all items, for the number of items of each split."""
    return [(split, number) for split, size in sizes.items() for number in range(1, size + 1)]


def new_image_folder(folder: Path) -> Path:
    """Make ``folder/images`` anew, and return it."""
    images = folder / "images"
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir(parents=True)
    return images


def write_jsonl(path: Path, records: Iterable[dict]) -> None:
    """Write one JSON object a line to a file that appears only when it is complete."""
    write_file(path, "".join(f"{json.dumps(record)}\n" for record in records))


def read_shown(folder: Path, wanted: Iterable[str], noun: str) -> dict[str, Any]:
    """Return the records of ``folder/shown.jsonl`` by id.

    Args:
        folder: Folder of a collection.
        wanted: Ids that must be there.
        noun: Name of an item in the message.

    Raises:
        UserError: If an item was not drawn.
    """
    path = folder / SHOWN
    records = {record["id"]: record for _, record in read_objects(path)}
    for key in wanted:
        if key not in records:
            raise UserError(f"{path}: has no {noun} {key!r}.")
    return records


def read_split(path: Path, split: str) -> list[dict]:
    """Return the records of a JSON lines file whose ``split`` is this one."""
    return [record for _, record in read_objects(path) if record["split"] == split]
