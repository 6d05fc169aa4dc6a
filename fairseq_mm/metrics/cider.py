"""CIDEr-D of single items with fixed document frequencies (Vedantam et al. 2015, section 8).

Figures are coco-caption's: n-grams of order 1 to 4, sigma 6, factor 10, and, as there, the length
difference in the Gaussian penalty counted in bigrams.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

MAX_ORDER = 4
SIGMA = 6.0
SCALE = 10.0

Ngram = tuple[str, ...]


def _ngrams(tokens: Sequence[str]) -> Counter:
    counts: Counter = Counter()
    for n in range(1, MAX_ORDER + 1):
        counts.update(zip(*(tokens[i:] for i in range(n))))
    return counts


def document_frequencies(references: Iterable[Sequence[Sequence[str]]]) -> Counter:
    """In how many items' references each n-gram of order 1 to 4 occurs.

    Args:
        references: for each item its tokenised references.
    """
    return _frequencies([_ngrams(tokens) for tokens in item] for item in references)


def _frequencies(counts: Iterable[Sequence[Counter]]) -> Counter:
    frequencies: Counter = Counter()
    for item in counts:
        frequencies.update(set().union(*item))
    return frequencies


class _ReferenceVectors:
    """TF-IDF vectors of one item's references, by n-gram, so that a score visits the hypothesis's
    n-grams once, whatever the number of references."""

    def __init__(self, references: Sequence[Counter], scorer: "CiderD") -> None:
        self.num_bigrams = [
            sum(c for g, c in counts.items() if len(g) == 2) for counts in references
        ]
        self.entries: dict[Ngram, list[tuple[int, int]]] = defaultdict(list)
        self.inverse_norms = []  # [K][order]
        for k, counts in enumerate(references):
            squares = [0.0] * MAX_ORDER
            for ngram, count in counts.items():
                self.entries[ngram].append((k, count))
                squares[len(ngram) - 1] += (count * scorer.idf(ngram)) ** 2
            self.inverse_norms.append([1 / math.sqrt(s) if s > 0 else 0.0 for s in squares])


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
        counts = [[_ngrams(tokens) for tokens in item] for item in references]
        if frequencies is None or num_documents is None:
            frequencies, num_documents = _frequencies(counts), len(counts)
        if num_documents < 1:
            raise ValueError("CIDEr's document frequencies must come from 1 item or more, not 0.")
        self.num_documents = num_documents
        self._counts: list[Optional[list[Counter]]] = list(counts)
        self._frequencies = frequencies
        self._log_documents = math.log(num_documents)
        self._vectors: dict[int, _ReferenceVectors] = {}

    def idf(self, ngram: Ngram) -> float:
        """Log of the inverse document frequency; an n-gram never seen counts as seen once."""
        return self._log_documents - math.log(max(1, self._frequencies.get(ngram, 0)))

    def score(self, hypothesis: Sequence[str], references: Sequence[Sequence[str]]) -> float:
        """Score of one hypothesis, 0 to 10; the corpus figure is the mean over items.

        Raises:
            ValueError: if there is no reference.
        """
        if not references:
            raise ValueError("`references` must have one reference or more, but is empty.")
        return self._score(hypothesis, _ReferenceVectors([_ngrams(r) for r in references], self))

    def score_item(self, hypothesis: Sequence[str], index: int) -> float:
        """Score against the references of item ``index`` of the constructor's ``references``;
        their vectors are made once, so that repeated validation costs the hypothesis alone."""
        counts = self._counts[index]
        if counts is not None:
            self._vectors[index] = _ReferenceVectors(counts, self)
            self._counts[index] = None  # the vectors hold the same n-grams
        return self._score(hypothesis, self._vectors[index])

    def _score(self, hypothesis: Sequence[str], vectors: _ReferenceVectors) -> float:
        K = len(vectors.num_bigrams)
        products = [[0.0] * MAX_ORDER for _ in range(K)]
        squares = [0.0] * MAX_ORDER
        for ngram, count in _ngrams(hypothesis).items():
            order = len(ngram) - 1
            squared_idf = self.idf(ngram) ** 2
            squares[order] += count * count * squared_idf
            for k, reference_count in vectors.entries.get(ngram, ()):
                # clipped, so that repeating a word does not help
                products[k][order] += min(count, reference_count) * reference_count * squared_idf
        inverse_norms = [1 / math.sqrt(s) if s > 0 else 0.0 for s in squares]
        total = 0.0
        num_bigrams = max(0, len(hypothesis) - 1)
        for k in range(K):
            delta = num_bigrams - vectors.num_bigrams[k]
            similarity = sum(
                product * own * theirs
                for product, own, theirs in zip(
                    products[k], inverse_norms, vectors.inverse_norms[k]
                )
            )
            total += similarity * math.exp(-(delta**2) / (2 * SIGMA**2))
        return SCALE * total / (MAX_ORDER * K)
