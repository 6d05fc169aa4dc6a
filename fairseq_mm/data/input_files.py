"""Reads text files from users (lines, JSON, JSONL), with errors of one line."""

import contextlib
import functools
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from typing import Any, Optional

from fairseq_mm.errors import UserError

SPLITS = ("train", "valid", "test")

# Notepad and Excel begin UTF-8 files with this mark; it would become a part of the first id
_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def check_id(key: str, where: str, *, what: str = "an image") -> str:
    """Return ``key`` if files such as ``<split>.visual_ids`` can hold it as an id.

    ``where`` (``path:line``) and ``what`` (noun for the item, such as "an image") are for messages.
    """
    # h5py cannot store a zero byte in a string; splitlines also knows \x0b, \x85 and U+2028
    if key != key.strip() or key.splitlines() != [key] or "\t" in key or "\0" in key:
        raise UserError(
            f"{where}: {what}'s id must be text without tabs, line breaks or space around it, "
            f"but is {key!r} instead."
        )
    return key


def read_id(entry: dict[str, Any], where: str, *, what: str) -> Optional[str]:
    """Return the checked ``id`` of ``entry``, a JSON object; None if it has no id.

    ``where`` (``path:line``) and ``what`` (noun for the item, such as "a video") are for messages.
    """
    key = entry.get("id")
    if key is None:
        return None
    if not isinstance(key, str):
        raise UserError(f"{where}: `id` must be text, but is {json.dumps(key)[:80]} instead.")
    return check_id(key, where, what=what)


def read_lines(
    path: Any, *, encoding: str = "utf-8", what: Optional[str] = None
) -> Iterator[tuple[int, str]]:
    """Yield line numbers from 1 and lines without line breaks; drop a byte order mark.

    ``what`` is a clause for the message about a missing file, such as "it names the image of each
    line".
    """
    try:
        # not in text mode, which decodes ahead in blocks: an error would not belong to a line
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and line.startswith(_BOM):
                    line = line[len(_BOM) :]
                try:
                    yield number, line.decode(encoding).rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{path}:{number}: must be {encoding.upper()} text, but is not "
                        f"({error.reason})."
                    ) from None
    except OSError as error:
        reason = f"({error.strerror}){f'; {what}' if what else ''}"
        raise UserError(f"{path}: cannot be read {reason}.") from None


def check_line_counts(named_counts: dict[str, int]) -> None:
    """Check that all files have equally many lines; ``named_counts`` maps the name of each file to
    its number of lines. If two counts differ, raise UserError that names these files and counts."""
    (first, expected), *others = named_counts.items()
    for name, count in others:
        if count != expected:
            raise UserError(
                f"{first} has {expected} lines, but {name} has {count}: they must agree line by "
                "line."
            )


def read_bytes(path: Any) -> bytes:
    """Read a whole file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None


def compute_sha256(path: Any) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    try:
        return file_digest(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}.") from None


def file_digest(path: Any) -> str:
    """Return the SHA-256 of a file, in hexadecimal; an unchanged file is read once per process.
    Raise OSError if the file cannot be read."""
    key = (os.fspath(path), _get_version(path))
    thread = _digest_threads.pop(key, None)
    if thread is not None:
        thread.join()
    return _hash_version(*key)


def start_digest(path: Any) -> None:
    """Start to compute the SHA-256 of a file in another thread, for a later :func:`file_digest`.

    If the file cannot be read, :func:`file_digest` raises the error.
    """

    def compute() -> None:
        with contextlib.suppress(OSError):
            _hash_version(*key)

    with contextlib.suppress(OSError):
        key = (os.fspath(path), _get_version(path))
        # daemon: a command that ends with an error does not wait for it
        thread = threading.Thread(target=compute, daemon=True)
        if _digest_threads.setdefault(key, thread) is thread:
            thread.start()


# path and version of a file -> thread that computes its digest
_digest_threads: dict[tuple[str, tuple[int, ...]], threading.Thread] = {}


def _get_version(path: Any) -> tuple[int, ...]:
    status = os.stat(path)
    # replacing a file changes its inode, rewriting it changes its times
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@functools.lru_cache(maxsize=256)
def _hash_version(path: str, version: tuple[int, ...]) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def read_json(path: Any) -> Any:
    """Return the value in a JSON file."""
    return parse_json(decoded(read_bytes(path), str(path)), str(path))


def decoded(content: bytes, where: str) -> str:
    """Decode ``content`` as UTF-8, without its byte order mark; ``where`` is for messages. Raise
    UserError if the content is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: must be UTF-8 text, but is not ({error.reason}).") from None


def read_objects(path: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``path:line`` and the JSON object of each line of a JSONL file; skip blank lines. Raise
    UserError if the file cannot be read, or a line is no JSON object."""
    for number, line in read_lines(path):
        if line.strip():
            where = f"{path}:{number}"
            yield where, parse_object(line, where)


def parse_json(text: str, where: str = "") -> Any:
    """Parse JSON text; ``where`` is for messages."""
    where = where and f"{where}: "
    try:
        value = json.loads(text)
    except RecursionError:
        raise UserError(f"{where}not JSON (brackets in brackets too deep).") from None
    except ValueError as error:
        raise UserError(f"{where}not JSON ({error}).") from None
    # json.loads accepts a lone surrogate, which would end a command when it is printed or written
    if _SURROGATE.search(text):
        try:
            # a pair of escaped surrogates is a character; only a lone one cannot be encoded
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise UserError(f"{where}text holds half a character (a lone surrogate).") from None
    return value


def parse_object(line: str, where: str) -> dict[str, Any]:
    """Parse a JSON object; ``where`` (``path:line``) is for messages."""
    entry = parse_json(line, where)
    if not isinstance(entry, dict):
        raise UserError(f"{where}: must be a JSON object, but is {type(entry).__name__} instead.")
    return entry
