"""Word vectors from word2vec's binary files.

The first line has the numbers of words and of dimensions. Then each word stands in UTF-8, followed
by a space and its vector, little-endian float32. word2vec writes a line feed after each vector;
files as the released one of Google News have none. No more than a part of the file and the vectors
that are asked for are held in memory.
"""

import os
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NamedTuple, Optional

import numpy as np

from fairseq_mm.errors import UserError

_PART = 1 << 20
_LARGEST_DIM = 1 << 20
_LONGEST_WORD = 4096  # bytes; word2vec itself cuts words at 100


class Word2vecHeader(NamedTuple):
    """
    Attributes:
        num_words: V.
        dim: numbers in a vector.
        length: bytes of the line, its end included.
    """

    num_words: int
    dim: int
    length: int


def parse_header(line: bytes) -> Optional[Word2vecHeader]:
    """The first line of word2vec's files, text or binary; None if it is another line."""
    fields = line.split()
    if len(fields) != 2 or not all(f.isdigit() and len(f) < 19 for f in fields):
        return None
    return Word2vecHeader(int(fields[0]), int(fields[1]), len(line))


def is_binary(start: bytes, header: Word2vecHeader, path: str) -> bool:
    """Whether numbers follow the first word as bytes, not as text.

    Args:
        start: of the file, header included.
        header: its first line.
        path: of the file; a name with ``.bin`` decides where the bytes could be either.
    """
    vector = start[header.length :].partition(b" ")[2][: 4 * header.dim]
    line = vector.partition(b"\n")[0]
    if any(byte < 9 or 13 < byte < 32 or byte > 126 for byte in line):
        return True
    if any(byte < 9 or 13 < byte < 32 for byte in vector):
        return True
    return not _is_text_vector(line) and path.endswith((".bin", ".bin.gz"))


def _is_text_vector(line: bytes) -> bool:
    try:
        return bool([float(field) for field in line.split()])
    except ValueError:
        return False


def find_binary(
    start: bytes, file: BinaryIO, header: Word2vecHeader, keys: Mapping[bytes, str], path: str
) -> dict[str, np.ndarray]:
    """
    Args:
        start: what has been read of the file, header included.
        file: the rest of it.
        header: its first line.
        keys: words that are wanted, in UTF-8, and as they are returned.
        path: of the file.

    Returns:
        word -> ``[dim]`` float32 of the wanted words that the file has; of several vectors of one
        word the first.

    Raises:
        UserError: if the file is shorter or longer than its first line says, a word is not UTF-8,
            a wanted vector is not finite, or has more than a million dimensions.
    """
    _check_size(file, header, path)
    found: dict[str, np.ndarray] = {}
    for number, (key, values) in enumerate(_records(start, file, header, path), start=1):
        word = keys.get(key)
        if word is None or word in found:
            continue
        vector = np.frombuffer(values, dtype="<f4").astype(np.float32)
        if not np.isfinite(vector).all():
            raise UserError(
                f"{path}: the vector of word {number} ({word!r}) must be finite numbers, but is "
                "not."
            )
        found[word] = vector
    return found


def _check_size(file: BinaryIO, header: Word2vecHeader, path: str) -> None:
    """A word takes a byte and a space at least; compressed files and pipes have no size to hold
    against that, and end as they are read."""
    if header.dim > _LARGEST_DIM:
        raise UserError(
            f"{path}: its first line says {header.dim} dimensions, but at most {_LARGEST_DIM} are "
            "read."
        )
    expected = header.length + header.num_words * (4 * header.dim + 2)
    size = os.path.getsize(path)
    if os.path.isfile(path) and not path.endswith(".gz") and size < expected:
        raise UserError(
            f"{path}: its first line says {header.num_words} words of {header.dim} dimensions, "
            f"which take {expected} bytes at least, but it has {size}: it is not whole."
        )


def _records(
    start: bytes, file: BinaryIO, header: Word2vecHeader, path: str
) -> Iterator[tuple[bytes, bytes]]:
    """Each word and the bytes of its vector."""
    length = 4 * header.dim
    needed = _LONGEST_WORD + 2 + length
    part, at = start, header.length
    for number in range(1, header.num_words + 1):
        if len(part) - at < needed:
            part, at = part[at:] + file.read(_PART + needed), 0
        if part[at : at + 1] == b"\n":
            at += 1
        end = part.find(b" ", at, at + _LONGEST_WORD + 1)
        if end < 0 and len(part) - at > _LONGEST_WORD:
            raise _layout_error(path, number, f"no space in {_LONGEST_WORD} bytes")
        if end < 0 or len(part) < end + 1 + length:
            raise UserError(
                f"{path}: its first line says {header.num_words} words, but it ends in word "
                f"{number}."
            )
        word = part[at:end]
        _check_word(word, path, number)
        at = end + 1 + length
        yield word, part[end + 1 : at]
    if (part[at:] + file.read(2)).strip(b"\n"):
        raise UserError(
            f"{path}: its first line says {header.num_words} words, but it goes on after the last "
            "one."
        )


def _check_word(word: bytes, path: str, number: int) -> None:
    """Bytes that are no text come from another layout; word2vec cuts long words anywhere, though,
    in a character too."""
    try:
        word.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            raise _layout_error(path, number, "not UTF-8") from None
    if not word or b"\n" in word:
        raise _layout_error(path, number, "empty" if not word else "a line feed in it")


def _layout_error(path: str, number: int, found: str) -> UserError:
    return UserError(
        f"{path}: word {number} must be UTF-8 and followed by a space and its vector (word2vec's "
        f"binary form), but is not ({found})."
    )
