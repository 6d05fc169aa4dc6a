"""Reads and checks ``dict.txt`` and ``<split>.bin/.idx``, the files of ``fairseq-preprocess``.

fairseq maps ``.bin`` and ``.idx`` without checking them. A token outside the dictionary would crash
the training in the embedding lookup, and a file that is cut short would crash it when the last
lines are read.
"""

import os
import struct
from collections.abc import Iterable
from typing import Any, Optional

import numpy as np
from fairseq.data import Dictionary, data_utils

from fairseq_mm.errors import UserError

_MMAP_MAGIC = b"MMIDIDX\x00\x00"
# as fairseq's MMapIndexedDataset writes it: version, code of the integer type, number of lines
_MMAP_HEADER = struct.Struct("<QBQ")
# fairseq's codes of the integer types in which it writes tokens
_CODES = {4: np.int32, 5: np.int64, 8: np.uint16, 9: np.uint32}


def load_dictionary(path: str) -> Dictionary:
    """Load and check a dictionary."""
    try:
        dictionary = Dictionary.load(path)
    except FileNotFoundError:
        folder = os.path.dirname(path)
        raise UserError(f"{path}: no such file; is {folder} a folder made by `prepare`?") from None
    except Exception as error:  # fairseq raises Exception itself
        raise UserError(f"{path}: cannot be read as a dictionary: {error}") from None
    if len(dictionary) == dictionary.nspecial:
        raise UserError(f"{path}: must have a word and its count in each line, but is empty.")
    return dictionary


def build_dictionary(words: Iterable[str]) -> Dictionary:
    """Build a dictionary that has fairseq's special symbols, then ``words`` in their order."""
    dictionary = Dictionary()
    for word in words:
        # otherwise a word that equals a special symbol would get no index of its own
        dictionary.add_symbol(word, overwrite=True)
    return dictionary


def load_binarised_text(base: str, *, num_types: int, end: int) -> Any:
    """Load and check a binarised text; return fairseq's dataset of lines.

    ``base`` is its path without ``.bin`` and ``.idx``, ``num_types`` the size of the dictionary,
    special symbols included, and ``end`` the index of the symbol that ends each line.
    """
    for suffix in (".idx", ".bin"):
        if not os.path.isfile(base + suffix):
            raise UserError(
                f"{base}{suffix}: no such file; binarise the split with fairseq-preprocess."
            )
    damaged = f"{base}.bin and .idx cannot be read"
    remedy = "binarise the split anew with fairseq-preprocess."
    try:
        indexed = _check_index(base)
        text = data_utils.load_indexed_dataset(base)
        if text is None:
            raise ValueError("of no known format")
        if indexed is None or not len(text):
            return text
        sizes, number_type = indexed
        words = np.memmap(f"{base}.bin", mode="r", dtype=number_type)
        greatest = int(words.max())
        # asked of signed types only: min() reads the whole file once more
        if number_type.kind == "i" and int(words.min()) < 0:
            raise ValueError("it has a word number below 0")
        # one comparison for all lines; a line without any token has no last token to look at
        open_ended = np.flatnonzero(words[np.cumsum(sizes)[sizes > 0] - 1] != end)
        if len(open_ended) and greatest < num_types:
            line = int(np.flatnonzero(sizes > 0)[open_ended[0]]) + 1
            raise ValueError(f"line {line} does not end with </s>: the two are not of one text")
    except Exception as error:  # fairseq asserts, and raises nearly anything on other files
        raise UserError(f"{damaged} ({type(error).__name__}: {error}); {remedy}") from None
    if greatest >= num_types:
        raise UserError(
            f"{base}.bin has the word number {greatest}, but the dictionary has {num_types - 4} "
            f"words and 4 symbols: it was binarised with another dictionary; {remedy}"
        )
    return text


def check_no_empty_line(path: str, sizes: np.ndarray) -> None:
    """Check that each line has a word.

    ``sizes`` has the number of tokens of each line, ``</s>`` included; ``path`` is for messages.
    """
    empty = np.flatnonzero(sizes <= 1)  # </s> is the only token
    if len(empty):
        raise UserError(
            f"{path}: line {empty[0] + 1} is empty ({len(empty)} empty in all): each line must "
            "have at least one word."
        )


def _check_index(base: str) -> Optional[tuple[np.ndarray, np.dtype]]:
    """Read the line sizes ``[lines]`` and the type of the token indices from ``<base>.idx``.

    Return None for fairseq's older formats, which are not checked. Raise ValueError if the file is
    damaged, or ``<base>.bin`` has another size than its lines.
    """
    size = os.path.getsize(f"{base}.idx")
    with open(f"{base}.idx", "rb") as file:
        magic = file.read(len(_MMAP_MAGIC))
        if magic[:8] != _MMAP_MAGIC[:8]:  # fairseq recognises the format by these eight bytes
            return None
        header = file.read(_MMAP_HEADER.size)
        if len(header) < _MMAP_HEADER.size:
            raise ValueError("cut short")
        version, code, lines = _MMAP_HEADER.unpack(header)
        begin = len(_MMAP_MAGIC) + _MMAP_HEADER.size
        # each line has a size of 4 bytes and an offset of 8 bytes
        if magic != _MMAP_MAGIC or version != 1 or code not in _CODES or size != begin + 12 * lines:
            raise ValueError(
                f"version {version}, code {code}, {size} bytes for {lines} lines: damaged"
            )
        sizes = np.frombuffer(file.read(4 * lines), "<i4").astype(np.int64)
        starts = np.frombuffer(file.read(8 * lines), "<i8")
    number_type = np.dtype(_CODES[code])
    ends = np.cumsum(sizes) * number_type.itemsize
    # fairseq does not compare offsets with sizes: one damaged byte would shift all lines
    if (sizes < 0).any() or (starts != ends - sizes * number_type.itemsize).any():
        raise ValueError("its lines do not follow one another: damaged")
    bin_size, total = os.path.getsize(f"{base}.bin"), int(ends[-1]) if lines else 0
    if bin_size != total or (lines and not total):
        raise ValueError(f"{bin_size} bytes, but its lines have {total}")
    return sizes, number_type
