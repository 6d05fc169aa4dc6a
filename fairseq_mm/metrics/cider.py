"""Computes CIDEr-D (Vedantam et al. 2015, section 8).

The constants are from coco-caption: n-grams of order 1 to 4, sigma 6, factor 10. Also as in
coco-caption, the length difference in the Gaussian penalty is counted in bigrams.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Optional

import numpy as np

MAX_ORDER = 4
SIGMA = 6.0
SCALE = 10.0

# words are text, or numbers that stand for words
Ngram = tuple[Hashable, ...]
# counts of the n-grams of one text, by order
Counts = list[dict[Ngram, int]]


def ngram_counts(tokens: Sequence[Hashable]) -> Counts:
    """Count the n-grams of orders 1 to 4 in a text, as tuples; return one count per order."""
    return [Counter(zip(*(tokens[i:] for i in range(n)))) for n in range(1, MAX_ORDER + 1)]


class InverseDocumentFrequencies:
    """Squared weights of n-grams: (log(documents) - log(documents with the n-gram)) ** 2."""

    def __init__(self, frequencies: Mapping[Ngram, int], num_documents: int) -> None:
        # The weight of an n-gram occurs only squared. An unseen n-gram counts as seen once.
        squares = {
            frequency: (math.log(num_documents) - math.log(frequency)) ** 2
            for frequency in {1, *frequencies.values()}
        }
        self.squares = {ngram: squares[count] for ngram, count in frequencies.items()}
        self.unseen = squares[1]


def count_documents(items: Iterable[Sequence[Counts]]) -> Counter:
    """Count in how many test items each n-gram occurs; ``items`` has the n-gram counts of the texts
    of each item."""
    return Counter(chain.from_iterable(set(chain(*chain(*x))) for x in items))


class CiderD:
    """CIDEr-D scorer with the document frequencies of the test set's references.

    The frequencies are counted as in coco-caption's ``corpus`` mode: all references of an image
    count as one document. With a single image, every idf is log 1 = 0, and so is every score.

    Args:
        references: Tokenized references of each image (or other test item).
        weights: Weights of n-grams; by default from the frequencies of ``references``.
    """

    def __init__(
        self,
        references: Sequence[Sequence[Sequence[Hashable]]],
        weights: Optional[InverseDocumentFrequencies] = None,
    ) -> None:
        self._counts = [[ngram_counts(tokens) for tokens in item] for item in references]
        self.num_documents = len(self._counts)
        if weights is None:
            weights = InverseDocumentFrequencies(count_documents(self._counts), len(self._counts))
        self._squared_idf, self._unseen = weights.squares, weights.unseen
        self._inverse_norms: list[Optional[list[list[float]]]] = [None] * len(self._counts)

    def score_item(self, hypothesis: Sequence[Hashable], index: int) -> float:
        """Compute CIDEr-D, 0 to 10, of a tokenized hypothesis against the references of the item
        ``index``; the corpus score is the mean."""
        references, inverse_norms = self._counts[index], self._inverse_norms[index]
        if inverse_norms is None:
            # kept, since validation scores the same references after each epoch
            inverse_norms = [self._compute_inverse_norms(counts) for counts in references]
            self._inverse_norms[index] = inverse_norms
        weight, unseen = self._squared_idf.get, self._unseen
        hypothesis_counts = ngram_counts(hypothesis)
        hypothesis_norms = self._compute_inverse_norms(hypothesis_counts)
        total = 0.0
        for counts, norms in zip(references, inverse_norms):
            similarity = 0.0
            for own, other, own_norm, norm in zip(
                hypothesis_counts, counts, hypothesis_norms, norms
            ):
                # clipped counts, so that repeating a word does not raise the score
                product = sum(
                    [
                        min(count, other[ngram]) * other[ngram] * weight(ngram, unseen)
                        for ngram, count in own.items()
                        if ngram in other
                    ]
                )
                similarity += product * own_norm * norm
            # in bigrams and not in words, as in coco-caption's code
            delta = sum(hypothesis_counts[1].values()) - sum(counts[1].values())
            total += similarity * math.exp(-(delta**2) / (2 * SIGMA**2))
        return SCALE * total / (MAX_ORDER * len(references))

    def _compute_inverse_norms(self, counts: Counts) -> list[float]:
        """Return 1 / norm of a text's TF-IDF vector, for each n-gram order; 0 for an empty vector.

        ``counts`` has, for each order, the number of occurrences of each n-gram in the text.
        """
        weight, unseen = self._squared_idf.get, self._unseen
        # sums over lists, which are faster than sums over generators
        squares = [
            sum([count * count * weight(ngram, unseen) for ngram, count in ngrams.items()])
            for ngrams in counts
        ]
        return [1 / math.sqrt(square) if square > 0 else 0.0 for square in squares]


class Nearest(NamedTuple):
    """Training caption that is nearest to a text."""

    place: int  # index of the training caption
    # CIDEr-D of the text with the training caption as its reference, 0 to 10; 10 if both have the
    # same words in the same order
    similarity: float


class NearestCaption:
    """Inverted index of training captions, which finds the caption with the highest CIDEr-D to a
    text.

    Document frequencies are counted over the training images. Raises ValueError if there are no
    captions, or the arguments have different lengths.

    Args:
        captions: Tokenized training captions.
        items: Id of the image of each caption. Document frequencies count images.
    """

    def __init__(self, captions: Sequence[Sequence[str]], items: Sequence[str]) -> None:
        self._ngram_numbers: dict[tuple[Hashable, ...], int] = {}
        ngrams, owners, counts = [], [], []
        for owner, tokens in enumerate(captions):
            for ngram, count in chain(*(order.items() for order in ngram_counts(tokens))):
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
        """Compute CIDEr-D [captions] of a text, with each caption in turn as the only reference."""
        products = np.zeros_like(self._inverse_norms)
        squares = np.zeros(MAX_ORDER)
        for ngram, count in chain(*(order.items() for order in ngram_counts(tokens))):
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
