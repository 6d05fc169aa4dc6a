"""CIDEr-D of single items with fixed document frequencies (Vedantam et al. 2015, section 8).

The constants are from coco-caption: n-grams of order 1 to 4, sigma 6, factor 10. Also as in
coco-caption, the length difference in the Gaussian penalty is counted in bigrams.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Optional

MAX_ORDER = 4
SIGMA = 6.0
SCALE = 10.0

Ngram = tuple[str, ...]
# counts of the n-grams of one text, by order
Counts = list[dict[Ngram, int]]


def _ngram_counts(tokens: Sequence[str]) -> Counts:
    return [Counter(zip(*(tokens[i:] for i in range(n)))) for n in range(1, MAX_ORDER + 1)]


def _frequencies(items: Iterable[Sequence[Counts]]) -> Counter:
    return Counter(chain.from_iterable(set(chain(*chain(*item))) for item in items))


def document_frequencies(references: Iterable[Sequence[Sequence[str]]]) -> Counter:
    """Count, for each n-gram of order 1 to 4, the items in whose references it occurs.

    ``references`` are the tokenized references of each item.
    """
    return _frequencies([_ngram_counts(tokens) for tokens in item] for item in references)


class CiderD:
    """CIDEr-D scorer with the document frequencies of a fixed set of items.

    With document frequencies of a single item, every idf is log 1 = 0, and so is every score.
    Raises ValueError if only one of ``frequencies`` and ``num_documents`` is given, or if the
    number of items is 0.

    Args:
        references: Tokenized references of each item. Without ``frequencies``, the document
            frequencies are counted over these references, as in coco-caption's ``corpus`` mode.
        frequencies: Document frequencies of other items (see :func:`document_frequencies`).
        num_documents: Number of items over which ``frequencies`` was counted.
    """

    def __init__(
        self,
        references: Sequence[Sequence[Sequence[str]]],
        *,
        frequencies: Optional[Mapping[Ngram, int]] = None,
        num_documents: Optional[int] = None,
    ) -> None:
        if (frequencies is None) != (num_documents is None):
            raise ValueError("`frequencies` and `num_documents` must be given together.")
        self._counts = [[_ngram_counts(tokens) for tokens in item] for item in references]
        if frequencies is None or num_documents is None:
            frequencies, num_documents = _frequencies(self._counts), len(self._counts)
        if num_documents < 1:
            raise ValueError("CIDEr's document frequencies must come from 1 item or more, not 0.")
        self.num_documents = num_documents
        # The weight of an n-gram occurs only squared. An unseen n-gram counts as seen once.
        squared_idf = {
            frequency: (math.log(num_documents) - math.log(max(1, frequency))) ** 2
            for frequency in {1, *frequencies.values()}
        }
        self._squared_idf = {ngram: squared_idf[count] for ngram, count in frequencies.items()}
        self._unseen = squared_idf[1]
        self._inverse_norms: list[Optional[list[list[float]]]] = [None] * len(self._counts)

    def score(self, hypothesis: Sequence[str], references: Sequence[Sequence[str]]) -> float:
        """Compute the CIDEr-D, 0 to 10, of a tokenized hypothesis; the corpus score is the mean
        over items. Raise ValueError if there is no reference."""
        if not references:
            raise ValueError("`references` must have one reference or more, but is empty.")
        counts = [_ngram_counts(tokens) for tokens in references]
        return self._score(hypothesis, counts, [self._compute_inverse_norms(c) for c in counts])

    def score_item(self, hypothesis: Sequence[str], index: int) -> float:
        """Compute the CIDEr-D, 0 to 10, of a hypothesis for item ``index`` of ``references``."""
        counts, norms = self._counts[index], self._inverse_norms[index]
        if norms is None:
            # kept, since validation scores the same references after each epoch
            norms = self._inverse_norms[index] = [self._compute_inverse_norms(c) for c in counts]
        return self._score(hypothesis, counts, norms)

    def _compute_inverse_norms(self, counts: Counts) -> list[float]:
        """Return 1 / norm of a text's TF-IDF vector of each n-gram order; 0 for an empty vector."""
        weight, unseen = self._squared_idf.get, self._unseen
        # sums over lists, which are faster than sums over generators
        squares = [
            sum([count * count * weight(ngram, unseen) for ngram, count in ngrams.items()])
            for ngrams in counts
        ]
        return [1 / math.sqrt(square) if square > 0 else 0.0 for square in squares]

    def _score(
        self,
        hypothesis: Sequence[str],
        references: Sequence[Counts],
        inverse_norms: Sequence[Sequence[float]],
    ) -> float:
        weight, unseen = self._squared_idf.get, self._unseen
        hypothesis_counts = _ngram_counts(hypothesis)
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
