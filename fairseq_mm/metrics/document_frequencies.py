"""Counts, writes and reads the document frequencies of a data folder's references.

``<split>.document_frequencies.npz`` has the number of items (such as images) in whose references
each n-gram occurs. Rewards by CIDEr-D need these numbers. The n-grams contain the end token. The
file has these arrays: ``words`` (UTF-8, one word a line), ``ngrams`` [N, 4] int32 (indices in
``words``, then -1), ``counts`` [N] int32, ``documents`` (item count), and ``texts`` (digest of
texts).
"""

import hashlib
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import numpy as np

from fairseq_mm.data.numpy_files import load_numpy, read_member
from fairseq_mm.data.output_file import partial_path
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.cider import (
    MAX_ORDER,
    InverseDocumentFrequencies,
    Ngram,
    count_documents,
    ngram_counts,
)

COMMAND = "fairseq-mm frequencies"
# arrays of a file
MEMBERS = ("words", "ngrams", "counts", "documents", "texts")
_BLOCK = 1 << 20


def frequencies_path(data: str, split: str) -> str:
    return os.path.join(data, f"{split}.document_frequencies.npz")


def digest_texts(paths: Iterable[str]) -> str:
    """Return a digest of the contents of the files that exist among ``paths``."""
    digest = hashlib.sha256()
    for path in paths:
        if os.path.exists(path):
            with open(path, "rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
    return digest.hexdigest()


def count_frequencies(items: Iterable[Sequence[Sequence[Hashable]]]) -> Counter:
    """Count in how many items (such as images) each n-gram of orders 1 to 4 occurs.

    ``items`` has the references of each item, each a sequence of words.
    """
    return count_documents([ngram_counts(words) for words in references] for references in items)


def write_frequencies(
    path: str,
    frequencies: Mapping[Ngram, int],
    documents: int,
    *,
    spell: Callable[[Any], str],
    texts: str,
) -> None:
    """Write document frequencies completely or not at all.

    Args:
        path: Path of the file.
        frequencies: Number of documents that contain each n-gram.
        documents: Number of all documents.
        spell: Function from a word to its text.
        texts: Digest of the texts, see :func:`digest_texts`.
    """
    numbers: dict[Hashable, int] = {}
    rows = np.full((len(frequencies), MAX_ORDER), -1, dtype=np.int32)
    for row, ngram in zip(rows, frequencies):
        row[: len(ngram)] = [numbers.setdefault(word, len(numbers)) for word in ngram]
    try:
        with partial_path(path) as partial:
            with open(partial, "wb") as file:
                np.savez_compressed(
                    file,
                    words=np.frombuffer("\n".join(map(spell, numbers)).encode(), dtype=np.uint8),
                    ngrams=rows,
                    counts=np.fromiter(frequencies.values(), np.int32, len(rows)),
                    documents=np.array(documents),
                    texts=np.array(texts),
                )
            os.replace(partial, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}).") from None


def read_frequencies(
    data: str, split: str, *, find: Callable[[Iterable[str]], list[Hashable]], texts: str
) -> InverseDocumentFrequencies:
    """Read the document frequencies of a split, as weights of n-grams.

    Args:
        data: Path of the data folder.
        split: Name of the split.
        find: Function from the texts of words to the words.
        texts: Digest that the file must have, see :func:`digest_texts`.
    """
    path = frequencies_path(data, split)
    hint = f"run {COMMAND} {data}" + ("" if split == "train" else f" --split {split}")
    if not os.path.exists(path):
        raise UserError(f"{path}: no such file, which CIDEr-D as a reward needs: {hint}")
    try:
        file = load_numpy(Path(path))
        if isinstance(file, np.ndarray):
            raise ValueError
        with file:
            arrays = {name: read_member(file, Path(path), name) for name in MEMBERS}
        spellings = arrays["words"].tobytes().decode().split("\n")
        ngrams, counts = arrays["ngrams"], arrays["counts"].tolist()
        documents, counted = int(arrays["documents"]), str(arrays["texts"])
        words = find(spellings)
        if not (ngrams.shape == (len(counts), MAX_ORDER) and ngrams.max() < len(words)):
            raise ValueError
        if not 0 < min(counts) <= max(counts) <= documents:
            raise ValueError
    except (UserError, ValueError, TypeError):
        raise UserError(f"{path}: is no file of document frequencies, or damaged: {hint}") from None
    if counted != texts:
        raise UserError(f"{path}: was counted from other texts than the folder has: {hint}")
    frequencies = {}
    for order in range(1, MAX_ORDER + 1):
        # a row has as many numbers that are not -1 as its order says
        rows = np.flatnonzero((ngrams >= 0).sum(axis=1) == order)
        for row, ngram in zip(rows.tolist(), ngrams[rows, :order].tolist()):
            frequencies[tuple(words[i] for i in ngram)] = counts[row]
    return InverseDocumentFrequencies(frequencies, documents)
