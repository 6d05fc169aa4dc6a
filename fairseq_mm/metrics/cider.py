"""Computes CIDEr-D (Vedantam et al. 2015, section 8).

The constants are from coco-caption: n-grams of order 1 to 4, sigma 6, factor 10. Also as in
coco-caption, the length difference in the Gaussian penalty is counted in bigrams.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Optional

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
    """Squared weights of n-grams: the square of log(documents) - log(documents with the n-gram).

    Args:
        frequencies: Number of documents that contain each n-gram.
        num_documents: Number of all documents.
    """

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
    Raises ValueError if ``references`` is empty.

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
        if not self._counts:
            raise ValueError("CIDEr's document frequencies must come from 1 item or more, not 0.")
        if weights is None:
            weights = InverseDocumentFrequencies(count_documents(self._counts), len(self._counts))
        self._squared_idf, self._unseen = weights.squares, weights.unseen
        self._inverse_norms: list[Optional[list[list[float]]]] = [None] * len(self._counts)

    def score_item(self, hypothesis: Sequence[Hashable], index: int) -> float:
        """Compute CIDEr-D, 0 to 10, of a tokenized hypothesis against the references with the given
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
