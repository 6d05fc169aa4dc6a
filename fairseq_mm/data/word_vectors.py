"""Reads word vectors from files: word2vec's formats (text and binary), GloVe, fastText's ``.vec``.

In the text formats, a line is a word and its numbers, separated by spaces; files of word2vec and
fastText begin with a header, a line with the number of words and the dimension. In word2vec's
binary format, the header is followed by each word in UTF-8, a space, and its vector in
little-endian float32. word2vec writes a line feed after each vector; some files, such as the
released Google News vectors, have no line feeds. Only a part of the file and the wanted vectors are
held in memory. Files whose names end with ``.gz`` are decompressed while reading.
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

# enough for the header and the first vector, which tell text from binary
_START = 1 << 16
_PART = 1 << 20
# a damaged header could demand any amount of memory for one vector
_LARGEST_DIM = 1 << 20
# in bytes; word2vec itself cuts words at 100
_LONGEST_WORD = 4096


class WordVectors(NamedTuple):
    """Word vectors of a vocabulary.

    Attributes:
        vectors: ``[V, D]`` float32, zeros for a word without vector.
        is_found: ``[V]`` bool, True for a word with a vector.
    """

    vectors: np.ndarray
    is_found: np.ndarray


def read_word_vectors(path: str, words: Sequence[str], *, dim: int) -> WordVectors:
    """Read the vectors of ``words`` from a file.

    A word that the file does not have gets the vector of its lower-case form. If a word has several
    lines, the first line counts. Raise UserError if the file cannot be read, its vectors have
    another dimension than ``dim``, a value is no number, or the file has none of the words.
    """
    vectors_by_word = _read_vectors(path, {word for w in words for word in (w, w.lower())}, dim)
    vectors = np.zeros((len(words), dim), dtype=np.float32)
    is_found = np.zeros(len(words), dtype=bool)
    for i, word in enumerate(words):
        vector = vectors_by_word.get(word, vectors_by_word.get(word.lower()))
        if vector is not None:
            vectors[i], is_found[i] = vector, True
    if not is_found.any():
        raise UserError(
            f"{path}: has a vector of none of the {len(words)} words of the dictionary."
        )
    return WordVectors(vectors, is_found)


def _read_vectors(path: str, wanted: set[str], dim: int) -> dict[str, np.ndarray]:
    """Return the words of ``wanted`` that the file has, each with its vector ``[dim]``."""
    # compared as bytes, so that only lines with a wanted word are decoded
    keys = {word.encode(): word for word in wanted}
    vectors: dict[str, np.ndarray] = {}
    number = 0
    try:
        with _open(path) as file:
            start = file.read(_START)
            header = _parse_header(start[: start.find(b"\n") + 1])
            if header is not None and _is_binary(start, header, path):
                if header.dim != dim:
                    raise _dimension_error(path, 1, header.dim, dim)
                return _read_binary_vectors(start, file, header, keys, path)
            for number, line in enumerate(_read_lines(start, file, path), start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                    header = _parse_header(line)  # again: a byte order mark may have hidden it
                    if header is not None and header.dim != dim:
                        raise _dimension_error(path, 1, header.dim, dim)
                    if header is not None:
                        continue
                key = line.split(b" ", 1)[0]
                word = keys.get(key)
                # the first two lines are always parsed: a wrong dimension is reported at once
                if number > 2 and (word is None or word in vectors):
                    continue
                key, vector = _parse_line(line, path, number, dim)
                word = keys.get(key)  # GloVe has words with spaces: compare the whole word
                if word is not None and word not in vectors:
                    vectors[word] = vector
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read as word vectors ({reason}).") from None
    if not number:
        raise UserError(f"{path}: must have a word and its numbers in each line, but is empty.")
    return vectors


def _open(path: str) -> BinaryIO:
    if os.path.isdir(path):
        raise UserError(f"{path}: must be a file of word vectors, but is a folder.")
    if path.endswith(".gz"):
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return open(path, "rb")


def _read_lines(start: bytes, file: BinaryIO, path: str) -> Iterator[bytes]:
    """Yield the lines of a file whose first bytes, ``start``, have been read already."""
    # the last piece is the beginning of a line whose rest is still in the file
    *whole, cut = start.split(b"\n")
    for line in whole:
        yield line + b"\n"
    rest = bounded_lines(file, path)
    cut += next(rest, b"")
    if cut:
        yield cut
    yield from rest


def _parse_line(line: bytes, path: str, number: int, dim: int) -> tuple[bytes, np.ndarray]:
    """Return the word of a line and its vector ``[dim]``.

    ``path`` and ``number``, the number of the line, are for messages.
    """
    # at single spaces, and words in bytes: GloVe has words with spaces and with other white space
    fields = line.rstrip().split(b" ")
    word, values = b" ".join(fields[:-dim]), fields[-dim:]
    if len(fields) < dim + 1:
        # a line of two fields may belong to any file, not only to vectors of one dimension
        if not _are_numbers(fields[1:]) or len(fields) < 3:
            raise _format_error(path, number)
        raise _dimension_error(path, number, len(fields) - 1, dim)
    # numbers only: otherwise the first fields are a word with spaces
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


def _dimension_error(path: str, number: int, dim: int, expected: int) -> UserError:
    return UserError(
        f"{path}:{number}: has vectors of {dim} dimensions, but --word-dim is {expected}."
    )


def _format_error(path: str, number: int) -> UserError:
    return UserError(
        f"{path}:{number}: must be a word and its numbers, separated by spaces (word vectors as "
        "text: word2vec's, GloVe's or fastText's .vec; or word2vec's binary format), but is not."
    )


class _Header(NamedTuple):
    """First line of word2vec's files; ``length`` is its number of bytes, line break included."""

    num_words: int
    dim: int
    length: int


def _parse_header(line: bytes) -> Optional[_Header]:
    """Parse the first line of word2vec's files, text or binary; return None if ``line`` has another
    form."""
    fields = line.split()
    # 18 digits fit into 64 bits
    if len(fields) != 2 or not all(f.isdigit() and len(f) < 19 for f in fields):
        return None
    return _Header(int(fields[0]), int(fields[1]), len(line))


def _is_binary(start: bytes, header: _Header, path: str) -> bool:
    """Return True if the vector after the first word is binary. ``start`` has the first bytes of
    the file, including the header line."""
    vector = start[header.length :].partition(b" ")[2][: 4 * header.dim]
    # in a text file the numbers of the first line are ASCII, the next words may be of any script
    line = vector.partition(b"\n")[0]
    if any(byte < 9 or 13 < byte < 32 or byte > 126 for byte in line):
        return True
    if any(byte < 9 or 13 < byte < 32 for byte in vector):
        return True
    # the bytes of a short vector may be printable by chance: then the file's name decides
    is_text = bool(line.split()) and _are_numbers(line.split())
    return not is_text and path.endswith((".bin", ".bin.gz"))


def _read_binary_vectors(
    start: bytes, file: BinaryIO, header: _Header, keys: Mapping[bytes, str], path: str
) -> dict[str, np.ndarray]:
    """Return the wanted words of a binary file, each with its float32 vector ``[dim]``.

    ``start`` has the first bytes of the file, including the header line; ``keys`` maps the bytes of
    each wanted word to the word.
    """
    _check_size(header, path)
    vectors: dict[str, np.ndarray] = {}
    for number, (key, values) in enumerate(_read_records(start, file, header, path), start=1):
        word = keys.get(key)
        if word is None or word in vectors:
            continue
        vector = np.frombuffer(values, dtype="<f4").astype(np.float32)
        if not np.isfinite(vector).all():
            raise UserError(
                f"{path}: the vector of word {number} ({word!r}) must be finite numbers, but is "
                "not."
            )
        vectors[word] = vector
    return vectors


def _check_size(header: _Header, path: str) -> None:
    """Raise UserError if a binary file is too small for the vectors that its header declares."""
    if header.dim > _LARGEST_DIM:
        raise UserError(
            f"{path}: its first line says {header.dim} dimensions, but at most {_LARGEST_DIM} are "
            "read."
        )
    # a word takes at least a byte and a space
    expected = header.length + header.num_words * (4 * header.dim + 2)
    size = os.path.getsize(path)
    # compressed files and pipes have no size to compare, and are checked while they are read
    if os.path.isfile(path) and not path.endswith(".gz") and size < expected:
        raise UserError(
            f"{path}: its first line says {header.num_words} words of {header.dim} dimensions, "
            f"which take {expected} bytes at least, but it has {size}: it is not whole."
        )


def _read_records(
    start: bytes, file: BinaryIO, header: _Header, path: str
) -> Iterator[tuple[bytes, bytes]]:
    """Yield each word of a binary file, and the bytes of its vector. ``start`` has the first bytes
    of the file, header included."""
    length = 4 * header.dim
    needed = _LONGEST_WORD + 2 + length  # with a line feed before the word and a space after it
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
    """Raise UserError if a word is not UTF-8 text, since the file then has another layout than
    word2vec's. ``number`` is the position of the word, from 1."""
    try:
        word.decode()
    except UnicodeDecodeError as error:
        # word2vec cuts long words at any byte, also within a character
        if error.reason != "unexpected end of data":
            raise _layout_error(path, number, "not UTF-8") from None
    if not word or b"\n" in word:
        raise _layout_error(path, number, "empty" if not word else "a line feed in it")


def _layout_error(path: str, number: int, problem: str) -> UserError:
    return UserError(
        f"{path}: word {number} must be UTF-8 and followed by a space and its vector (word2vec's "
        f"binary form), but is not ({problem})."
    )
