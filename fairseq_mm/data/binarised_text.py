"""Reads and writes the files of ``fairseq-preprocess``: ``dict.txt`` and ``<split>.bin/.idx``.

fairseq maps ``.bin`` and ``.idx`` without checking them. A token outside the dictionary would crash
the training in the embedding lookup, and a file that is cut short would crash it when the last
lines are read.
"""

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_mm.errors import file_errors


def load_dictionary(path: str) -> Dictionary:
    """Load and check a dictionary."""
    with file_errors(path, "cannot be read as a dictionary"):
        dictionary = Dictionary.load(path)
        if len(dictionary) == dictionary.nspecial:
            raise ValueError("it has no word")
    return dictionary


def build_dictionary(words: Iterable[str]) -> Dictionary:
    """Build a dictionary of fairseq's special symbols, followed by ``words`` in their order."""
    dictionary = Dictionary()
    for word in words:
        # otherwise a word that equals a special symbol would get no index of its own
        dictionary.add_symbol(word, overwrite=True)
    return dictionary


def binarise(lines: Iterable[list[str]], dictionary: Dictionary, base: str) -> int:
    """Write ``base.bin`` and ``base.idx`` in the format of ``fairseq-preprocess``; return the
    number of unknown words. ``lines`` has the list of words of each line."""
    find, unknown, end = dictionary.indices.get, dictionary.unk(), dictionary.eos()
    builder = indexed_dataset.make_builder(f"{base}.bin", "mmap", vocab_size=len(dictionary))
    num_unknown = 0
    for words in lines:
        indices = [find(word, unknown) for word in words]
        num_unknown += indices.count(unknown)
        indices.append(end)
        builder.add_item(torch.from_numpy(np.array(indices)))
    builder.finalize(f"{base}.idx")
    return num_unknown


def load_binarised_text(base: str, *, num_types: int, end: int) -> Any:
    """Load and check a binarised text; return fairseq's dataset of lines.

    ``base`` is its path without ``.bin`` and ``.idx``, ``num_types`` the size of the dictionary,
    special symbols included, and ``end`` the index of the symbol that ends each line.
    """
    with file_errors(f"{base}.bin and .idx", "cannot be read; binarise the split anew"):
        text = data_utils.load_indexed_dataset(base)
        if text is None:
            raise FileNotFoundError("no such file")
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
        if least < 0 or greatest >= num_types or len(open_ended):
            raise ValueError(
                f"it has the numbers {least} to {greatest}, and {len(open_ended)} lines without "
                f"</s>, but the dictionary has {num_types} types"
            )
        empty = np.flatnonzero(sizes == 1)  # </s> is the only token
        if len(empty):
            raise ValueError(f"line {empty[0] + 1} has no word ({len(empty)} empty in all)")
        return text
