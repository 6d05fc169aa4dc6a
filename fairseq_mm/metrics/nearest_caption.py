"""Finds the training caption with the highest CIDEr-D similarity to a generated caption.

Document frequencies are counted over the training images, as CIDEr-D counts them over the test
images. An inverted index of n-grams scores all training captions at once.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from fairseq_mm.metrics.cider import MAX_ORDER, SCALE, SIGMA


class Nearest(NamedTuple):
    """Training caption that is nearest to a text.

    Attributes:
        place: Index of the training caption.
        similarity: CIDEr-D of the text with the training caption as its reference, 0 to 10; 10 if
            both have the same words in the same order.
    """

    place: int
    similarity: float


def _ngrams(tokens: Sequence[str]) -> Counter:
    orders = range(1, MAX_ORDER + 1)
    return Counter(chain.from_iterable(zip(*(tokens[i:] for i in range(n))) for n in orders))


class NearestCaption:
    """Index of training captions, which finds the caption with the highest CIDEr-D to a text.

    Raises ValueError if there are no captions, or the arguments have different lengths.

    Args:
        captions: Tokenized training captions.
        items: Id of the image of each caption. Document frequencies count images.
    """

    def __init__(self, captions: Sequence[Sequence[str]], items: Sequence[str]) -> None:
        if not captions or len(captions) != len(items):
            raise ValueError(
                f"`captions` and `items` must be equally many and not empty, but are "
                f"{len(captions)} and {len(items)}."
            )
        self._ngram_numbers: dict[tuple[str, ...], int] = {}
        ngrams, owners, counts = [], [], []
        for owner, tokens in enumerate(captions):
            for ngram, count in _ngrams(tokens).items():
                ngrams.append(self._ngram_numbers.setdefault(ngram, len(self._ngram_numbers)))
                owners.append(owner)
                counts.append(count)
        ngram_ids = np.array(ngrams, dtype=np.int64)  # [entries]
        owner_ids = np.array(owners, dtype=np.int64)
        entry_counts = np.array(counts, dtype=np.float64)
        item_number = {item: i for i, item in enumerate(dict.fromkeys(items))}
        item_ids = np.array([item_number[item] for item in items], dtype=np.int64)
        # documents are items and not captions: an image whose captions repeat an n-gram counts once
        pairs = np.unique(ngram_ids * len(item_number) + item_ids[owner_ids])
        V = len(self._ngram_numbers)
        frequencies = np.bincount(pairs // len(item_number), minlength=V)
        self._log_items = math.log(len(item_number))
        self._idf = self._log_items - np.log(frequencies)  # [V]
        orders = np.array([len(ngram) - 1 for ngram in self._ngram_numbers], dtype=np.int64)
        squares = np.bincount(
            owner_ids * MAX_ORDER + orders[ngram_ids],
            weights=(entry_counts * self._idf[ngram_ids]) ** 2,
            minlength=len(captions) * MAX_ORDER,
        ).reshape(len(captions), MAX_ORDER)
        self._inverse_norms = _inverse_roots(squares)  # [captions, orders]
        # the length penalty counts bigrams, as in cider.py
        self._num_bigrams = np.array([max(0, len(tokens) - 1) for tokens in captions])
        # entries of n-gram v are at starts[v]:starts[v + 1], so that a text reads only its own
        # n-grams
        by_ngram = np.argsort(ngram_ids, kind="stable")
        self._starts = np.searchsorted(ngram_ids[by_ngram], np.arange(V + 1))
        self._owners, self._counts = owner_ids[by_ngram], entry_counts[by_ngram]

    def similarities(self, tokens: Sequence[str]) -> np.ndarray:
        """Compute the CIDEr-D of a text against each caption as its only reference: [captions]."""
        products = np.zeros_like(self._inverse_norms)
        squares = np.zeros(MAX_ORDER)
        for ngram, count in _ngrams(tokens).items():
            order = len(ngram) - 1
            number = self._ngram_numbers.get(ngram)
            if number is None:  # an unseen n-gram counts as seen once
                squares[order] += (count * self._log_items) ** 2
                continue
            squared_idf = self._idf[number] ** 2
            squares[order] += count**2 * squared_idf
            entries = slice(self._starts[number], self._starts[number + 1])
            clipped = np.minimum(count, self._counts[entries]) * self._counts[entries]
            products[self._owners[entries], order] += clipped * squared_idf
        cosines = (products * self._inverse_norms) @ _inverse_roots(squares)  # [captions]
        delta = max(0, len(tokens) - 1) - self._num_bigrams
        return SCALE / MAX_ORDER * cosines * np.exp(-(delta**2) / (2 * SIGMA**2))

    def nearest(self, tokens: Sequence[str]) -> Nearest:
        """Return the caption with the highest CIDEr-D to a text; the first if several have it."""
        similarities = self.similarities(tokens)
        place = int(similarities.argmax())
        return Nearest(place, float(similarities[place]))


def _inverse_roots(squares: np.ndarray) -> np.ndarray:
    # the inner where avoids the warning for a division by 0, whose result is not used
    return np.where(squares > 0, 1 / np.sqrt(np.where(squares > 0, squares, 1.0)), 0.0)
