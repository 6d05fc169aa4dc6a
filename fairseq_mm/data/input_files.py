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

from fairseq_mm.errors import UserError, file_errors

SPLITS = ("train", "valid", "test")

# Notepad and Excel begin UTF-8 files with this mark; it would become a part of the first id
_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def unreadable(where: Any, error: Exception) -> UserError:
    """Return an error about a file that cannot be read, or is not UTF-8 or not JSON; ``where`` is
    the file's path or ``path:line``."""
    reason = f"not JSON ({error})"
    if isinstance(error, OSError):
        reason = f"cannot be read ({error.strerror})"
    elif isinstance(error, UnicodeDecodeError):
        reason = f"must be UTF-8 text, but is not ({error.reason})"
    elif isinstance(error, RecursionError):
        reason = "not JSON (brackets in brackets too deep)"
    return UserError(f"{where}: {reason}." if where else f"{reason}.")


def check_id(key: Any, where: str, *, what: str = "an image") -> str:
    """Return ``key`` if it is a string that can be an id, without tabs and line breaks.

    ``where`` (``path:line``) and ``what`` (noun for the item, such as "an image") are for messages.
    """
    # h5py cannot store a zero byte in a string; splitlines also knows \x0b, \x85 and U+2028
    is_text = isinstance(key, str) and "\t" not in key and "\0" not in key
    if not is_text or key != key.strip() or key.splitlines() != [key]:
        raise UserError(
            f"{where}: {what}'s id must be text without tabs, line breaks or space around it, "
            f"but is {key!r:.80} instead."
        )
    return key


def read_id(entry: dict[str, Any], where: str, *, what: str) -> Optional[str]:
    """Return the ``id`` of a JSON object, see :func:`check_id`; None if it has no id."""
    return None if entry.get("id") is None else check_id(entry["id"], where, what=what)


def read_lines(path: Any, *, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """Yield line numbers from 1 and lines without line breaks; drop a byte order mark."""
    number = None
    try:
        # not in text mode, which decodes ahead in blocks: an error would not belong to a line
        with file_errors(path, kinds=OSError), open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and line.startswith(_BOM):
                    line = line[len(_BOM) :]
                yield number, line.decode(encoding).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise unreadable(f"{path}:{number}", error) from None


def read_bytes(path: Any) -> bytes:
    """Read a whole file."""
    with file_errors(path, kinds=OSError), open(path, "rb") as file:
        return file.read()


def compute_sha256(path: Any) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with file_errors(path, kinds=OSError):
        return file_digest(path)


def file_digest(path: Any) -> str:
    """Return the SHA-256 of a file, in hexadecimal; an unchanged file is read only once per
    process. Raise OSError if the file cannot be read."""
    status = os.stat(path)
    # replacing a file changes its inode, rewriting it changes its times
    version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    with _hashing:
        return _hash_version(os.fspath(path), version)


def start_digest(path: Any) -> None:
    """Compute the SHA-256 of a file in another thread, for a later :func:`file_digest`.

    If the file cannot be read, :func:`file_digest` raises the error.
    """

    def compute() -> None:
        with contextlib.suppress(OSError):
            file_digest(path)

    # daemon: a command that ends with an error does not wait for it
    threading.Thread(target=compute, daemon=True).start()


# held while a file is hashed, so that a file is not hashed twice at the same time
_hashing = threading.Lock()


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
    """Decode ``content`` as UTF-8, without its byte order mark; ``where`` is for messages."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise unreadable(where, error) from None


def read_objects(path: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``path:line`` and the JSON object of each line of a JSONL file; skip blank lines."""
    for number, line in read_lines(path):
        if line.strip():
            where = f"{path}:{number}"
            yield where, parse_object(line, where)


def parse_json(text: str, where: str = "") -> Any:
    """Parse JSON text; ``where`` is for messages."""
    try:
        value = json.loads(text)
        # json.loads accepts a lone surrogate, which would end a command when it is printed
        if _SURROGATE.search(text):
            # a pair of escaped surrogates is a character; only a lone one cannot be encoded
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        error = ValueError("text holds half a character, a lone surrogate")
        raise unreadable(where, error) from None
    except (RecursionError, ValueError) as error:
        raise unreadable(where, error) from None
    return value


def parse_object(line: str, where: str) -> dict[str, Any]:
    """Parse a JSON object; ``where`` (``path:line``) is for messages."""
    entry = parse_json(line, where)
    if not isinstance(entry, dict):
        raise UserError(f"{where}: must be a JSON object, but is {type(entry).__name__} instead.")
    return entry
