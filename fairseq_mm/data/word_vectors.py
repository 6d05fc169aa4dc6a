"""Word vectors from files: word2vec's formats, text and binary, GloVe, fastText's ``.vec``.

In text, a line is a word and its numbers, separated by spaces; word2vec and fastText put a line
with the two counts before. In word2vec's binary files each word stands in UTF-8 after that line,
followed by a space and its vector, little-endian float32; word2vec writes a line feed after each
vector, files as the released one of Google News have none. No more than a part of a file and the
vectors that are asked for are held in memory. Files that end with ``.gz`` are read as they are.
"""

import codecs
import gzip
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple, Optional

import numpy as np

from fairseq_mm.data.input_files import bounded_lines
from fairseq_mm.errors import UserError

_START = 1 << 16
_PART = 1 << 20
_LARGEST_DIM = 1 << 20
_LONGEST_WORD = 4096  # bytes; word2vec itself cuts words at 100


class WordVectors(NamedTuple):
    """
    Attributes:
        vectors: ``[V, D]`` float32, zeros where a word has none.
        is_found: ``[V]`` bool, whether it has one.
    """

    vectors: np.ndarray
    is_found: np.ndarray


def read_word_vectors(path: str, words: Sequence[str], *, dim: int) -> WordVectors:
    """The vectors of these words.

    A word that the file does not have takes the vector of its lower-case form; of several lines of
    one word the first counts.

    Args:
        path: the file.
        words: V of them.
        dim: D.

    Raises:
        UserError: if the file cannot be read, has vectors of another dimension or what is no
            number, or none of the words.
    """
    found = _find(path, {word for w in words for word in (w, w.lower())}, dim)
    vectors = np.zeros((len(words), dim), dtype=np.float32)
    is_found = np.zeros(len(words), dtype=bool)
    for i, word in enumerate(words):
        vector = found.get(word, found.get(word.lower()))
        if vector is not None:
            vectors[i], is_found[i] = vector, True
    if not is_found.any():
        raise UserError(
            f"{path}: has a vector of none of the {len(words)} words of the dictionary."
        )
    return WordVectors(vectors, is_found)


def _find(path: str, wanted: set[str], dim: int) -> dict[str, np.ndarray]:
    """Word -> ``[dim]`` of the words that the file has."""
    # bytes: a line of millions is decoded only where its word is wanted
    keys = {word.encode(): word for word in wanted}
    found: dict[str, np.ndarray] = {}
    number = 0
    try:
        with _open(path) as file:
            start = file.read(_START)
            header = _parse_header(start[: start.find(b"\n") + 1])
            if header is not None and _is_binary(start, header, path):
                if header.dim != dim:
                    raise _dimension_error(path, 1, header.dim, dim)
                return _find_binary(start, file, header, keys, path)
            for number, line in enumerate(_lines(start, file, path), start=1):
                if number == 1 and line.startswith(codecs.BOM_UTF8):
                    line = line[len(codecs.BOM_UTF8) :]
                if number == 1 and _is_header(line, path, dim):
                    continue
                key = line.split(b" ", 1)[0]
                word = keys.get(key)
                if number > 2 and (word is None or word in found):
                    continue
                key, vector = _parse(line, path, number, dim)
                word = keys.get(key)  # GloVe has words with spaces: the key is what was cut off
                if word is not None and word not in found:
                    found[word] = vector
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read as word vectors ({reason}).") from None
    if not number:
        raise UserError(f"{path}: must have a word and its numbers in each line, but is empty.")
    return found


def _open(path: str) -> BinaryIO:
    if os.path.isdir(path):
        raise UserError(f"{path}: must be a file of word vectors, but is a folder.")
    if path.endswith(".gz"):
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return open(path, "rb")


def _lines(start: bytes, file: BinaryIO, path: str) -> Iterator[bytes]:
    """Lines of a file of which ``start`` has been read."""
    *whole, cut = start.split(b"\n")
    for line in whole:
        yield line + b"\n"
    rest = bounded_lines(file, path)
    cut += next(rest, b"")
    if cut:
        yield cut
    yield from rest


def _is_header(line: bytes, path: str, dim: int) -> bool:
    """Whether a first line has the numbers of words and of dimensions."""
    header = _parse_header(line)
    if header is None:
        return False
    if header.dim != dim:
        raise _dimension_error(path, 1, header.dim, dim)
    return True


def _parse(line: bytes, path: str, number: int, dim: int) -> tuple[bytes, np.ndarray]:
    """A line's word and its vector."""
    fields = line.rstrip().split(b" ")
    word, values = b" ".join(fields[:-dim]), fields[-dim:]
    if len(fields) < dim + 1:
        if not _are_numbers(fields[1:]) or len(fields) < 3:
            raise _format_error(path, number)
        raise _dimension_error(path, number, len(fields) - 1, dim)
    if len(fields) > dim + 1 and _are_numbers(fields[1:]):
        raise _dimension_error(path, number, len(fields) - 1, dim)
    try:
        vector = np.array([float(value) for value in values], dtype=np.float32)
    except ValueError:
        raise _format_error(path, number) from None
    if not np.isfinite(vector).all():
        raise UserError(f"{path}:{number}: the vector must be finite numbers, but is not.")
    return word, vector


def _are_numbers(fields: Sequence[bytes]) -> bool:
    try:
        for field in fields:
            float(field)
    except ValueError:
        return False
    return True


def _dimension_error(path: str, number: int, found: int, expected: int) -> UserError:
    return UserError(
        f"{path}:{number}: has vectors of {found} dimensions, but --word-dim is {expected}."
    )


def _format_error(path: str, number: int) -> UserError:
    return UserError(
        f"{path}:{number}: must be a word and its numbers, separated by spaces (word vectors as "
        "text: word2vec's, GloVe's or fastText's .vec; or word2vec's binary format), but is not."
    )


class _Header(NamedTuple):
    """
    Attributes:
        num_words: V.
        dim: numbers in a vector.
        length: bytes of the line, its end included.
    """

    num_words: int
    dim: int
    length: int


def _parse_header(line: bytes) -> Optional[_Header]:
    """The first line of word2vec's files, text or binary; None if it is another line."""
    fields = line.split()
    if len(fields) != 2 or not all(f.isdigit() and len(f) < 19 for f in fields):
        return None
    return _Header(int(fields[0]), int(fields[1]), len(line))


def _is_binary(start: bytes, header: _Header, path: str) -> bool:
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


def _find_binary(
    start: bytes, file: BinaryIO, header: _Header, keys: Mapping[bytes, str], path: str
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
    _check_size(header, path)
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


def _check_size(header: _Header, path: str) -> None:
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
    start: bytes, file: BinaryIO, header: _Header, path: str
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
