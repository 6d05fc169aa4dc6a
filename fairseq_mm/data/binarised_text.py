"""Reads and checks ``dict.txt`` and ``<split>.bin/.idx``, the files of ``fairseq-preprocess``.

fairseq maps ``.bin`` and ``.idx`` without checking them. A token outside the dictionary would crash
the training in the embedding lookup, and a file that is cut short would crash it when the last
lines are read.
"""

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_mm.errors import UserError


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
    remedy = "binarise the split anew with fairseq-preprocess."
    try:
        text = data_utils.load_indexed_dataset(base)
        if not isinstance(text, MMapIndexedDataset) or not len(text):
            return text
        index, number_type = text._index, np.dtype(text._index.dtype)
        sizes = np.asarray(index.sizes, dtype=np.int64)
        ends = np.cumsum(sizes)
        starts, total = (ends - sizes) * number_type.itemsize, ends[-1] * number_type.itemsize
        # fairseq compares neither: one damaged byte would shift a line
        if (sizes <= 0).any() or (index._pointers != starts).any():
            raise ValueError("its lines do not follow one another")
        if os.path.getsize(f"{base}.bin") != total:
            raise ValueError(f"its lines have {total} bytes")
        words = np.memmap(f"{base}.bin", mode="r", dtype=number_type)
        least, greatest = int(words.min()), int(words.max())
        open_ended = np.flatnonzero(words[ends - 1] != end)
    except Exception as error:  # fairseq asserts, and raises nearly anything on other files
        raise UserError(
            f"{base}.bin and .idx cannot be read ({type(error).__name__}: {error}); {remedy}"
        ) from None
    if least < 0 or greatest >= num_types or len(open_ended):
        raise UserError(
            f"{base}.bin: must have lines of word numbers below {num_types}, each ended by </s>, "
            f"but has the numbers {least} to {greatest}, and {len(open_ended)} lines without end: "
            f"it is of another dictionary or another .idx; {remedy}"
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
