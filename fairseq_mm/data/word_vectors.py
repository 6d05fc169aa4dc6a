"""Word vectors from files: word2vec's formats, text and binary, GloVe, fastText's ``.vec``.

In text, a line is a word and its numbers, separated by spaces; word2vec and fastText put a line
with the two counts before. The binary format is that of :mod:`fairseq_mm.data.word2vec_binary`.
Files that end with ``.gz`` are read as they are.
"""

import codecs
import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from fairseq_mm.data.word2vec_binary import find_binary, is_binary, parse_header
from fairseq_mm.errors import UserError

_START = 1 << 16


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
            header = parse_header(start[: start.find(b"\n") + 1])
            if header is not None and is_binary(start, header, path):
                if header.dim != dim:
                    raise _dimension_error(path, 1, header.dim, dim)
                return find_binary(start, file, header, keys, path)
            for number, line in enumerate(_lines(start, file), start=1):
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


def _lines(start: bytes, file: BinaryIO) -> Iterator[bytes]:
    """Lines of a file of which ``start`` has been read."""
    *whole, cut = start.split(b"\n")
    for line in whole:
        yield line + b"\n"
    cut += file.readline()
    if cut:
        yield cut
    yield from file


def _is_header(line: bytes, path: str, dim: int) -> bool:
    """Whether a first line has the numbers of words and of dimensions."""
    header = parse_header(line)
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
