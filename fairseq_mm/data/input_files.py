"""Lines and JSON of text files that users give: read with one-line errors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq_mm.errors import UserError

SPLITS = ("train", "valid", "test")


def check_id(key: str, where: str, *, what: str = "an image") -> str:
    """Returns ``key`` if ``visual_ids`` and other lists of ids can hold it.

    Raises:
        UserError: if it is empty, or has a tab, a line break or space around it.
    """
    if not key or key != key.strip() or len(key.splitlines()) > 1 or "\t" in key:
        raise UserError(
            f"{where}: {what}'s id must be text without tabs, line breaks or space around it, "
            f"but is {key!r} instead."
        )
    return key


def read_lines(path: Path, *, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """Line numbers from 1 and lines without their ends; a byte order mark is dropped.

    Raises:
        UserError: if the file cannot be read, or a line is not in ``encoding``.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                    line = line[3:]
                try:
                    yield number, line.decode(encoding).rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{path}:{number}: not {encoding} text ({error.reason})."
                    ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None


def read_json(path: Path) -> object:
    """
    Raises:
        UserError: if the file cannot be read or is no JSON.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            return json.load(file)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not JSON ({error}).") from None


def parse_object(line: str, where: str) -> dict[str, Any]:
    """
    Raises:
        UserError: if a line is no JSON object.
    """
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON ({error}).") from None
    except RecursionError:
        raise UserError(f"{where}: not JSON (brackets in brackets too deep).") from None
    if not isinstance(entry, dict):
        raise UserError(f"{where}: must be a JSON object, but is {type(entry).__name__} instead.")
    return entry
