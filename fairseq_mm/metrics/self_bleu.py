"""Computes self-BLEU: how much the texts of a corpus resemble each other.

Defined by Zhu et al. 2018 (Texygen), section 3.1: BLEU of each text against all other texts of the
corpus as its references, averaged over the texts. BLEU is defined in
:mod:`fairseq_mm.metrics.bleu`.
"""

import bisect
from collections.abc import Sequence

import numpy as np

from fairseq_mm.metrics.bleu import MAX_ORDER, NUM_SUMS, bleu_from_sums, ngram_counts


def self_bleu(texts: Sequence[Sequence[str]]) -> list[float]:
    """Compute BLEU-4 of each text against all other texts.

    The time grows only with the number of words: for each n-gram, it suffices to store the two
    highest counts in a text. The results equal BLEU with the other texts as references.

    Args:
        texts: Tokens of each text.

    Returns:
        BLEU-4 of each text, 0 to 1. A high mean shows that the texts are alike.

    Raises:
        ValueError: if there are fewer than two texts.
    """
    if len(texts) < 2:
        raise ValueError(f"`texts` must be two texts or more, but are {len(texts)}.")
    counts = [ngram_counts(tokens) for tokens in texts]
    highest = [_two_highest([orders[order] for orders in counts]) for order in range(MAX_ORDER)]
    lengths = sorted(map(len, texts))
    scores = []
    for number, tokens in enumerate(texts):
        sums = np.zeros(NUM_SUMS, dtype=np.int64)
        for order in range(MAX_ORDER):
            for ngram, count in counts[number][order].items():
                owner, first, second = highest[order][ngram]
                sums[order] += min(count, second if owner == number else first)
            sums[MAX_ORDER + order] = max(0, len(tokens) - order)
        sums[-2] = len(tokens)
        sums[-1] = _closest_other(lengths, len(tokens))
        scores.append(bleu_from_sums(sums)[MAX_ORDER - 1])
    return scores


def _two_highest(counts: Sequence[dict]) -> dict[object, tuple[int, int, int]]:
    """Return for each n-gram the text with its highest count, this and the next highest count."""
    highest: dict[object, tuple[int, int, int]] = {}
    for number, ngrams in enumerate(counts):
        for ngram, count in ngrams.items():
            owner, first, second = highest.get(ngram, (-1, 0, 0))
            if count > first:
                highest[ngram] = (number, count, first)
            elif count > second:
                highest[ngram] = (owner, first, count)
    return highest


def _closest_other(lengths: Sequence[int], length: int) -> int:
    """Return the length closest to ``length`` among ``lengths`` without one text of this length."""
    start, end = bisect.bisect_left(lengths, length), bisect.bisect_right(lengths, length)
    if end - start > 1:
        return length
    others = [*lengths[max(0, start - 1) : start], *lengths[end : end + 1]]
    # the second entry decides between two equally close lengths: the shorter one counts
    return min((abs(other - length), other) for other in others)[1]
