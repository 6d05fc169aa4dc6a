"""Statistics of answers: accuracy, preference and agreement, with intervals.

Fan et al. 2018 (Figure 5) report "pairing accuracy" of the triple pairing task without a
definition. Both readings are computed: the share of answers with all three pairs right (1/6 for a
guess among the six orders), and the share of right pairs (1/3 for a guess).
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
        value: Share, between 0 and 1.
        interval: 95 % bootstrap interval; whole questions are resampled, with all their answers.
    """

    value: float
    interval: tuple[float, float]


class SignTest(NamedTuple):
    """Sign test over the questions in which a majority prefers one side.

    Attributes:
        first: Number of questions with a majority for the first side.
        second: Number of questions with a majority for the second side.
        even: Number of undecided questions, which do not count.
        p: Two-sided probability of such a difference if both sides are equally good.
    """

    first: int
    second: int
    even: int
    p: float


def bootstrap_share(
    hits: Sequence[float], totals: Sequence[float], *, samples: int, seed: int
) -> Share:
    """Compute the share of hits among all answers, with an interval over questions.

    Args:
        hits: Number of hits for each question.
        totals: Number of answers for each question; their sum is above 0.
        samples: Number of bootstrap samples.
        seed: Seed of the bootstrap.
    """
    sums = np.stack([np.asarray(hits, dtype=float), np.asarray(totals, dtype=float)], axis=1)
    figures = resampled(sums, _ratio, samples=samples, seed=seed)
    return Share(_ratio(sums.sum(axis=0)), interval(figures))


def _ratio(sums: np.ndarray) -> float:
    return float(sums[0] / sums[1])


def sign_test(hits: Sequence[int], totals: Sequence[int]) -> SignTest:
    """Test whether the majorities for the two sides differ more than by chance.

    Args:
        hits: Number of answers for the first side, for each question.
        totals: Number of all answers for each question.
    """
    first = sum(2 * hit > total for hit, total in zip(hits, totals))
    second = sum(2 * hit < total for hit, total in zip(hits, totals))
    n = first + second
    tail = sum(comb(n, k) for k in range(max(first, second), n + 1)) / 2**n
    return SignTest(first, second, len(hits) - n, min(1.0, 2 * tail))


def fleiss_kappa(counts: np.ndarray) -> Optional[float]:
    """Compute the agreement of annotators beyond chance (Fleiss 1971).

    Args:
        counts: ``[questions, categories]`` numbers of answers. Questions may have different numbers
            of answers; questions with fewer than two are ignored.

    Returns:
        1 for full agreement and 0 for agreement by chance; None if no question has two answers or
        all answers are in one category.
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
