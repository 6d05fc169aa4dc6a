"""Computes the ROUGE of one text (Lin 2004) in two protocols.

:func:`rouge_l` follows coco-caption: longest common subsequence, F-measure with beta 1.2. It
combines the best precision and the best recall over the references, each determined separately.

:func:`rouge_n_f1` and :func:`rouge_l_f1` are for summaries (Yu et al. 2021, section 4.4, whose
scores they reproduce): one reference, unchanged tokens, the F-measure with beta 1. In both
protocols the corpus score is the mean over texts.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

BETA = 1.2


def longest_common_subsequence(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Compute the length of the longest common subsequence of two texts by a bit-parallel method.

    Hyyrö 2004: a row of the table of dynamic programming is one integer, in which a zero bit marks
    a position of ``first`` where the length grows.
    """
    positions: dict[Hashable, int] = {}
    for i, token in enumerate(first):
        positions[token] = positions.get(token, 0) | 1 << i
    all_ones = (1 << len(first)) - 1
    row = all_ones
    for token in second:
        matched = row & positions.get(token, 0)
        row = ((row + matched) | (row - matched)) & all_ones
    return len(first) - bin(row).count("1")


def rouge_l(hypothesis: Sequence[Hashable], references: Sequence[Sequence[Hashable]]) -> float:
    """Compute coco-caption's ROUGE-L, 0 to 1, of one hypothesis; the corpus score is the mean. An
    empty hypothesis scores 0."""
    if not hypothesis:
        return 0.0
    precision = recall = 0.0
    for reference in references:
        # an empty reference has no recall
        if not reference:
            continue
        common = longest_common_subsequence(hypothesis, reference)
        # maximised separately, even over different references: coco-caption's definition
        precision = max(precision, common / len(hypothesis))
        recall = max(recall, common / len(reference))
    if precision == 0:
        return 0.0
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def rouge_n_f1(hypothesis: Sequence[str], reference: Sequence[str], n: int) -> float:
    """Compute ROUGE-N between 0 and 1: F1 of clipped n-gram counts (Lin 2004, section 2; beta 1).

    The result is 0 if either text has fewer than n tokens.
    """
    total = max(0, len(hypothesis) - n + 1) + max(0, len(reference) - n + 1)
    counts, reference_counts = _ngrams(hypothesis, n), _ngrams(reference, n)
    # a list, since sums over generators are slower
    shared = counts.keys() & reference_counts.keys()
    common = sum([min(counts[ngram], reference_counts[ngram]) for ngram in shared])
    return 2 * common / total if common else 0.0


def _ngrams(tokens: Sequence[str], n: int) -> Counter:
    # a 1-gram is the word itself, which is cheaper than a tuple
    return Counter(tokens) if n == 1 else Counter(zip(*(tokens[i:] for i in range(n))))


def rouge_l_f1(hypothesis: Sequence[str], reference: Sequence[str]) -> float:
    """Compute ROUGE-L of texts without sentences, 0 to 1: F1 of the longest common subsequence (Lin
    2004, section 3.1; beta 1); 0 if a text is empty."""
    common = longest_common_subsequence(hypothesis, reference)
    return 2 * common / (len(hypothesis) + len(reference)) if common else 0.0
