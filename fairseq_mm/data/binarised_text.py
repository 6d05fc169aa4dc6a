"""``dict.txt`` and ``<split>.bin/.idx`` as ``fairseq-preprocess`` makes them, checked when read.

fairseq maps the two files and looks no further: words that the dictionary does not have would end
the training at a table's edge, and a text cut short when its last lines are asked for.
"""

import os
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_mm.errors import UserError

_MMAP_MAGIC = b"MMIDIDX\x00\x00"
# number of bytes of a word's number -> how it is stored
_NUMBERS = {2: np.uint16, 4: np.uint32, 8: np.int64}


def load_dictionary(path: str) -> Dictionary:
    """
    Raises:
        UserError: if the file is missing, has no word, or a line is not ``word count``.
    """
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


def dictionary_of(words: Iterable[str]) -> Dictionary:
    """A dictionary of these words in their order, after fairseq's special symbols."""
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word, overwrite=True)  # a word of the list is always a new index
    return dictionary


def load_binarised_text(base: str, *, num_types: int, end: int) -> Any:
    """
    Args:
        base: path without ``.bin`` and ``.idx``.
        num_types: entries of the dictionary, special symbols included.
        end: number of the symbol that ends each line.

    Returns:
        fairseq's dataset of lines.

    Raises:
        UserError: if a file is missing, cut short, no such file, or was binarised with another
            dictionary.
    """
    for suffix in (".idx", ".bin"):
        if not os.path.isfile(base + suffix):
            raise UserError(
                f"{base}{suffix}: no such file; binarise the split with fairseq-preprocess."
            )
    damaged = f"{base}.bin and .idx cannot be read"
    remedy = "binarise the split anew with fairseq-preprocess."
    try:
        if not _is_whole(base):
            raise ValueError("cut short or no such files")
        text = data_utils.load_indexed_dataset(base)
        if text is None:
            raise ValueError("of no known format")
        if not isinstance(text, MMapIndexedDataset) or not len(text):
            return text
        sizes = np.asarray(text.sizes, dtype=np.int64)
        total = int(sizes.sum())
        found = os.path.getsize(f"{base}.bin")
        if (sizes < 0).any() or total == 0 or found % total or found // total not in _NUMBERS:
            raise ValueError(f"{found} bytes for {total} words")
    except Exception as error:  # fairseq asserts, and raises nearly anything on other files
        raise UserError(f"{damaged} ({type(error).__name__}: {error}); {remedy}") from None
    words = np.memmap(f"{base}.bin", mode="r", dtype=_NUMBERS[found // total])
    greatest = int(words.max())
    if greatest >= num_types:
        raise UserError(
            f"{base}.bin has the word number {greatest}, but the dictionary has {num_types - 4} "
            f"words and 4 symbols: it was binarised with another dictionary; {remedy}"
        )
    open_ended = np.flatnonzero(words[np.cumsum(sizes)[sizes > 0] - 1] != end)
    if len(open_ended):
        raise UserError(
            f"{damaged}: line {int(np.flatnonzero(sizes > 0)[open_ended[0]]) + 1} does not end "
            f"with </s>: the two are not of one text; {remedy}"
        )
    return text


def load_text_pair(
    base: str, languages: Sequence[str], dictionaries: Sequence[Dictionary]
) -> dict[str, Any]:
    """Source and target of a split as ``fairseq-preprocess`` binarises pairs.

    Args:
        base: path of the split's files, without their endings.
        languages: endings of the two.
        dictionaries: of the two.

    Returns:
        path without ``.bin`` and ``.idx`` -> its lines, the source first.

    Raises:
        UserError: if files are missing or damaged, a line is empty, or their line counts differ.
    """
    texts = {}
    for language, dictionary in zip(languages, dictionaries):
        path = f"{base}.{'-'.join(languages)}.{language}"
        texts[path] = load_binarised_text(path, num_types=len(dictionary), end=dictionary.eos())
        check_no_empty_line(f"{path}.idx", np.asarray(texts[path].sizes))
    check_line_counts({f"{path}.idx": len(text) for path, text in texts.items()})
    return texts


def check_line_counts(named_counts: dict[str, int]) -> None:
    """
    Args:
        named_counts: file -> number of its lines.

    Raises:
        UserError: naming both files and both counts, if two differ.
    """
    (first, expected), *others = named_counts.items()
    for name, count in others:
        if count != expected:
            raise UserError(
                f"{first} has {expected} lines, but {name} has {count}: they must agree line by "
                "line."
            )


def check_no_empty_line(path: str, sizes: np.ndarray) -> None:
    """
    Args:
        path: file of the binarised text.
        sizes: ``[lines]`` tokens per line, ``</s>`` included.

    Raises:
        UserError: if a line has no word.
    """
    empty = np.flatnonzero(sizes <= 1)
    if len(empty):
        raise UserError(
            f"{path}: line {empty[0] + 1} is empty ({len(empty)} empty in all): each line must "
            "have at least one word."
        )


def _is_whole(base: str) -> bool:
    """False where fairseq would fail half-way, and complain from a destructor."""
    with open(f"{base}.idx", "rb") as file:
        if file.read(len(_MMAP_MAGIC)) != _MMAP_MAGIC:
            return True  # of another format: fairseq's own concern
        header = file.read(17)
        if len(header) < 17:
            return False
        _, _, lines = struct.unpack("<QBQ", header)
        whole = 26 + 12 * lines <= os.path.getsize(f"{base}.idx")
    return whole and (lines == 0 or os.path.getsize(f"{base}.bin") > 0)
