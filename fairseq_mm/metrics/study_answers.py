"""Results of a study with annotators: accuracy, preference, agreement, with intervals.

Fan et al. 2018, Figure 5, report the "pairing accuracy" of the triple pairing task without defining
it. Two readings are computed: the share of answers with all three pairs right (a guess among the
six orders gets 1/6), and the share of right pairs (a guess gets 1/3).
"""

from collections.abc import Sequence
from math import comb
from typing import NamedTuple, Optional

import numpy as np

from fairseq_mm.metrics.bootstrap import interval, resampled

CHANCE_ALL = 1 / 6
CHANCE_PAIR = 1 / 3


class Share(NamedTuple):
    """Share of answers with its interval.

    Attributes:
        value: Share between 0 and 1.
        interval: 95 % bootstrap interval over questions, with all answers of each question.
    """

    value: float
    interval: tuple[float, float]


class SignTest(NamedTuple):
    """Sign test over questions with a majority for one side.

    Attributes:
        first: Number of questions with a majority for the first side.
        second: Number of questions with a majority for the second side.
        even: Number of undecided questions, which do not count.
        p: Two-sided p-value of such a difference between equally good sides.
    """

    first: int
    second: int
    even: int
    p: float


def bootstrap_share(
    hits: Sequence[float], totals: Sequence[float], *, samples: int, seed: int
) -> Share:
    """Compute the share of hits among all answers; questions are resampled, not answers.

    Args:
        hits: Number of hits of each question.
        totals: Number of answers of each question, at least one in all.
        samples: Number of resamplings.
        seed: Seed of the resampling.
    """
    sums = np.stack([np.asarray(hits, dtype=float), np.asarray(totals, dtype=float)], axis=1)
    figures = resampled(sums, _ratio, samples=samples, seed=seed)
    return Share(_ratio(sums.sum(axis=0)), interval(figures))


def _ratio(sums: np.ndarray) -> float:
    return float(sums[0] / sums[1])


def sign_test(hits: Sequence[int], totals: Sequence[int]) -> SignTest:
    """Test whether the number of questions with a majority for one side exceeds chance.

    Args:
        hits: Answers of each question for the first side.
        totals: All answers of each question.
    """
    first = sum(2 * hit > total for hit, total in zip(hits, totals))
    second = sum(2 * hit < total for hit, total in zip(hits, totals))
    n = first + second
    tail = sum(comb(n, k) for k in range(max(first, second), n + 1)) / 2**n
    return SignTest(first, second, len(hits) - n, min(1.0, 2 * tail))


def fleiss_kappa(counts: np.ndarray) -> Optional[float]:
    """Compute the agreement of annotators beyond chance (Fleiss 1971).

    The number of answers may differ between questions.

    Args:
        counts: ``[questions, categories]``, number of answers; questions with fewer than two
            answers tell nothing about agreement and are ignored.

    Returns:
        1 for full agreement, 0 for agreement by chance; None if no question has two answers, or all
        answers are in one category.
    """
    counts = counts[counts.sum(axis=1) >= 2].astype(float)
    if not len(counts):
        return None
    n = counts.sum(axis=1)
    agreement = ((counts**2).sum(axis=1) - n) / (n * (n - 1))
    shares = counts.sum(axis=0) / counts.sum()
    chance = float((shares**2).sum())
    if chance == 1:
        return None
    return float((agreement.mean() - chance) / (1 - chance))
