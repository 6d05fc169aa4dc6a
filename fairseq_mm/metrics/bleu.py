"""Computes corpus BLEU-1 to BLEU-4 from sums of statistics, which processes and batches can add up.

The scores follow Papineni et al. 2002 as described by Mao et al. 2015 (m-RNN), section 9.3,
equations 8 and 9, and computed by coco-caption: clipped n-gram matches, an unsmoothed geometric
mean, and a brevity penalty. The penalty compares the length of the hypothesis with the closest
length of a reference; if two are equally close, with the shorter one.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Union

import numpy as np

MAX_ORDER = 4
NUM_SUMS = 2 * MAX_ORDER + 2

# coco-caption's guards against 0 / 0: they determine the score if an order has no match at all,
# which is common for single captions.
_TINY, _SMALL = 1e-15, 1e-9


def ngram_counts(tokens: Sequence[Hashable]) -> list[Counter]:
    """Count the n-grams of orders 1 to 4 of a text; the 1-grams are words, not tuples."""
    # a 1-gram is the word itself, which is cheaper than a tuple
    longer = [Counter(zip(*(tokens[i:] for i in range(n)))) for n in range(2, MAX_ORDER + 1)]
    return [Counter(tokens), *longer]


def bleu_sums(
    hypothesis_tokens: Sequence[Hashable], references_tokens: Sequence[Sequence[Hashable]]
) -> np.ndarray:
    """Compute the statistics ``[10]`` of one hypothesis, whose sums give the corpus BLEU: matches
    of order 1 to 4, n-grams of order 1 to 4, length, length of the closest reference."""
    length = len(hypothesis_tokens)
    sums = np.zeros(NUM_SUMS, dtype=np.int64)
    references = [ngram_counts(tokens) for tokens in references_tokens]
    for order, counts in enumerate(ngram_counts(hypothesis_tokens)):
        sums[order] = sum(
            min(count, max(reference[order][ngram] for reference in references))
            for ngram, count in counts.items()
        )
        sums[MAX_ORDER + order] = max(0, length - order)
    sums[-2] = length
    # the second entry decides between two equally close references: the shorter one counts
    sums[-1] = min((abs(len(tokens) - length), len(tokens)) for tokens in references_tokens)[1]
    return sums


def bleu_from_sums(sums: Union[Sequence[float], np.ndarray]) -> list[float]:
    """Compute BLEU-1 to BLEU-4, each between 0 and 1, from summed results of :func:`bleu_sums`."""
    matches, totals = sums[:MAX_ORDER], sums[MAX_ORDER : 2 * MAX_ORDER]
    length, reference_length = float(sums[-2]), float(sums[-1])
    if length == 0:
        return [0.0] * MAX_ORDER
    ratio = (length + _TINY) / (reference_length + _SMALL)
    brevity_penalty = min(1.0, math.exp(1 - 1 / ratio))
    scores, product = [], 1.0
    for order in range(MAX_ORDER):
        product *= (float(matches[order]) + _TINY) / (float(totals[order]) + _SMALL)
        scores.append(brevity_penalty * product ** (1 / (order + 1)))
    return scores


def smoothed_bleu(
    hypothesis: Sequence[Hashable], references: Sequence[Sequence[Hashable]]
) -> float:
    """Compute BLEU-4 of one text, 0 to 1, smoothed as by Lin and Och 2004 (ORANGE, section 4).

    One is added to the matches and to the n-grams of orders 2 to 4: without it, most single texts
    would have a score of 0.
    """
    sums = bleu_sums(hypothesis, references).tolist()
    matches, totals = sums[:MAX_ORDER], sums[MAX_ORDER : 2 * MAX_ORDER]
    length, closest = sums[-2:]
    if not matches[0]:
        return 0.0
    logs = math.log(matches[0] / totals[0])
    logs += sum(math.log((m + 1) / (n + 1)) for m, n in zip(matches[1:], totals[1:]))
    return min(1.0, math.exp(1 - closest / length)) * math.exp(logs / MAX_ORDER)


def self_bleu(texts: Sequence[Sequence[str]]) -> list[float]:
    """Compute BLEU-4, 0 to 1, of each of two or more texts against all other texts.

    The mean is self-BLEU (Zhu et al. 2018, section 3.1). The time grows only with the number of
    words: for each n-gram, the two highest counts in a text are enough.
    """
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
        # the length that is closest among the other texts: this text's, if another text has it
        start, end = bisect_left(lengths, len(tokens)), bisect_right(lengths, len(tokens))
        others = [*lengths[max(0, start - 1) : end - 1], *lengths[end : end + 1]]
        # the second entry decides between two equally close lengths: the shorter one counts
        sums[-1] = min((abs(other - len(tokens)), other) for other in others)[1]
        scores.append(bleu_from_sums(sums)[MAX_ORDER - 1])
    return scores


def _two_highest(counts: Sequence[dict]) -> dict[object, tuple[int, int, int]]:
    """Return, for each n-gram, the text with its highest count, and its two highest counts."""
    highest: dict[object, tuple[int, int, int]] = {}
    for number, ngrams in enumerate(counts):
        for ngram, count in ngrams.items():
            owner, first, second = highest.get(ngram, (-1, 0, 0))
            if count > first:
                highest[ngram] = (number, count, first)
            elif count > second:
                highest[ngram] = (owner, first, count)
    return highest
