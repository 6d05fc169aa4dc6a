"""CIDEr-D of single items with fixed document frequencies (Vedantam et al. 2015, section 8).

Figures are coco-caption's: n-grams of order 1 to 4, sigma 6, factor 10, and, as there, the length
difference in the Gaussian penalty counted in bigrams.
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
# n-grams of one text with their counts, by order
Counts = list[dict[Ngram, int]]


def _ngram_counts(tokens: Sequence[str]) -> Counts:
    return [Counter(zip(*(tokens[i:] for i in range(n)))) for n in range(1, MAX_ORDER + 1)]


def _frequencies(items: Iterable[Sequence[Counts]]) -> Counter:
    return Counter(chain.from_iterable(set(chain(*chain(*item))) for item in items))


def document_frequencies(references: Iterable[Sequence[Sequence[str]]]) -> Counter:
    """In how many items' references each n-gram of order 1 to 4 occurs.

    Args:
        references: for each item its tokenised references.
    """
    return _frequencies([_ngram_counts(tokens) for tokens in item] for item in references)


class CiderD:
    """CIDEr-D with the document frequencies of a fixed set of items.

    Args:
        references: for each item its tokenised references. Without ``frequencies`` they give the
            document frequencies, as coco-caption does with the evaluated set (its ``corpus`` mode).
        frequencies: document frequencies from elsewhere (see :func:`document_frequencies`).
        num_documents: the number of items that ``frequencies`` was counted over.

    With document frequencies of a single item every idf is log 1 = 0, and so is every score.

    Raises:
        ValueError: if ``frequencies`` and ``num_documents`` are not given together, or there is
            no item.
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
        # The weight of an n-gram only ever occurs squared. One never seen counts as seen once.
        of_frequency = {
            frequency: (math.log(num_documents) - math.log(max(1, frequency))) ** 2
            for frequency in {1, *frequencies.values()}
        }
        self._squared_idf = {ngram: of_frequency[count] for ngram, count in frequencies.items()}
        self._unseen = of_frequency[1]
        self._inverse_norms: list[Optional[list[list[float]]]] = [None] * len(self._counts)

    def score(self, hypothesis: Sequence[str], references: Sequence[Sequence[str]]) -> float:
        """Score of one hypothesis, 0 to 10; the corpus figure is the mean over items.

        Raises:
            ValueError: if there is no reference.
        """
        if not references:
            raise ValueError("`references` must have one reference or more, but is empty.")
        counts = [_ngram_counts(tokens) for tokens in references]
        return self._score(hypothesis, counts, [self._inverse_norms_of(c) for c in counts])

    def score_item(self, hypothesis: Sequence[str], index: int) -> float:
        """Score against the references of item ``index`` of the constructor's ``references``;
        their norms are computed once, so that repeated validation costs the hypothesis alone."""
        counts, norms = self._counts[index], self._inverse_norms[index]
        if norms is None:
            norms = self._inverse_norms[index] = [self._inverse_norms_of(c) for c in counts]
        return self._score(hypothesis, counts, norms)

    def _inverse_norms_of(self, counts: Counts) -> list[float]:
        """``[order]``, one over the length of the text's TF-IDF vector; 0 for an empty one."""
        weight, unseen = self._squared_idf.get, self._unseen
        squares = [
            sum([count * count * weight(ngram, unseen) for ngram, count in of_order.items()])
            for of_order in counts
        ]
        return [1 / math.sqrt(square) if square > 0 else 0.0 for square in squares]

    def _score(
        self,
        hypothesis: Sequence[str],
        references: Sequence[Counts],
        inverse_norms: Sequence[Sequence[float]],
    ) -> float:
        weight, unseen = self._squared_idf.get, self._unseen
        own = _ngram_counts(hypothesis)
        own_norms = self._inverse_norms_of(own)
        total = 0.0
        for counts, norms in zip(references, inverse_norms):
            similarity = 0.0
            for ours, theirs, own_norm, norm in zip(own, counts, own_norms, norms):
                # clipped, so that repeating a word does not help
                product = sum(
                    [
                        min(count, theirs[ngram]) * theirs[ngram] * weight(ngram, unseen)
                        for ngram, count in ours.items()
                        if ngram in theirs
                    ]
                )
                similarity += product * own_norm * norm
            delta = sum(own[1].values()) - sum(counts[1].values())  # bigrams
            total += similarity * math.exp(-(delta**2) / (2 * SIGMA**2))
        return SCALE * total / (MAX_ORDER * len(references))
