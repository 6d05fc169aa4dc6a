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
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fairseq_mm.errors import UserError, file_errors

# enough for the header and the first vector, which tell text from binary
_START = 1 << 16
_PART = 1 << 20
_DIMENSION = "line {} has vectors of {} dimensions, but --word-dim is {}"


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
    lines, the first line counts.
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
    kinds = (OSError, EOFError, zlib.error, ValueError)
    with file_errors(path, "cannot be read as word vectors", kinds), _open(path) as file:
        if file.peek(3).startswith(codecs.BOM_UTF8):
            file.read(3)
        start = file.peek(_START)
        fields = start[: start.find(b"\n") + 1].split()
        has_header = len(fields) == 2 and all(field.isdigit() for field in fields)
        if has_header and int(fields[1]) != dim:
            raise ValueError(_DIMENSION.format(1, int(fields[1]), dim))
        if has_header and _is_binary(start[len(file.readline()) :], dim, path):
            records = _read_records(file, int(fields[0]), dim)
        else:
            records = _read_lines(file, dim, keys, first=1 + has_header)
        for key, vector in records:
            word = keys.get(key)
            if word is not None and word not in vectors:
                vectors[word] = vector.astype(np.float32)
                if not np.isfinite(vectors[word]).all():
                    raise ValueError(f"the vector of {word!r} must be finite numbers")
    return vectors


def _open(path: str) -> Any:
    return gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb", _START)


def _read_lines(
    file: BinaryIO, dim: int, keys: dict[bytes, str], *, first: int
) -> Iterator[tuple[bytes, np.ndarray]]:
    """Yield words and their vectors ``[dim]`` from a text file, whose first line has the number
    ``first``. Only this line, and lines whose first word is in ``keys``, are parsed."""
    for number, line in enumerate(file, first):
        if number != first and line.split(b" ", 1)[0] not in keys:
            continue
        # at single spaces, and words in bytes: GloVe has words with spaces and with other white
        # space
        fields = line.rstrip().split(b" ")
        has_numbers = len(fields) > 2 and _are_numbers(fields[1:])
        # numbers only: otherwise the first fields are a word with spaces
        if len(fields) != dim + 1 and has_numbers:
            raise ValueError(_DIMENSION.format(number, len(fields) - 1, dim))
        if len(fields) <= dim or not _are_numbers(fields[-dim:]):
            raise ValueError(
                f"line {number} must be a word and its numbers: word2vec's, GloVe's or fastText's "
                ".vec text, or word2vec's binary format"
            )
        yield b" ".join(fields[:-dim]), np.array([float(value) for value in fields[-dim:]])


def _are_numbers(fields: Sequence[bytes]) -> bool:
    try:
        for field in fields:
            float(field)
    except ValueError:
        return False
    return True


def _is_binary(body: bytes, dim: int, path: str) -> bool:
    """Return True if the file's vectors are binary, judged by ``body``, the first bytes after the
    header line."""
    vector = body.partition(b" ")[2][: 4 * dim]
    # in a text file the numbers of the first line are ASCII, the next words may be of any script
    line = vector.partition(b"\n")[0]
    if any(byte < 9 or 13 < byte < 32 or byte > 126 for byte in line):
        return True
    if any(byte < 9 or 13 < byte < 32 for byte in vector):
        return True
    # the bytes of a short vector may be printable by chance: then the file's name decides
    is_text = bool(line.split()) and _are_numbers(line.split())
    return not is_text and path.endswith((".bin", ".bin.gz"))


def _read_records(file: BinaryIO, num_words: int, dim: int) -> Iterator[tuple[bytes, np.ndarray]]:
    """Yield each word of a binary file, and its float32 vector ``[dim]``."""
    part, at = b"", 0
    for number in range(1, num_words + 1):
        end = part.find(b" ", at)
        if end < 0 or len(part) < end + 1 + 4 * dim:
            part, at = part[at:] + file.read(_PART + 4 * dim), 0
            end = part.find(b" ")
        if end < 0 or len(part) < end + 1 + 4 * dim:
            raise ValueError(
                f"its first line says {num_words} words of {dim} dimensions, but it ends in word "
                f"{number}"
            )
        yield part[at:end].removeprefix(b"\n"), np.frombuffer(part, "<f4", dim, end + 1)
        at = end + 1 + 4 * dim
