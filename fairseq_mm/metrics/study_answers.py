"""Figures of a study with annotators: accuracy, preference, agreement, with intervals.

Fan et al. 2018, Figure 5, report "pairing accuracy" of the triple pairing task without saying of
what. Two readings are given: the share of answers with all three pairs right (a guess among the
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
    """A share of answers.

    Attributes:
        value: between 0 and 1.
        interval: 95 % bootstrap interval over questions, with all answers of each.
    """

    value: float
    interval: tuple[float, float]


class SignTest(NamedTuple):
    """Questions in which the majority is for one side.

    Attributes:
        first: number of questions for the first.
        second: for the second.
        even: undecided; they do not count.
        p: two-sided, of a difference so large between equally good sides.
    """

    first: int
    second: int
    even: int
    p: float


def bootstrap_share(
    hits: Sequence[float], totals: Sequence[float], *, samples: int, seed: int
) -> Share:
    """Share of hits among all answers; questions are resampled, not answers.

    Args:
        hits: of each question.
        totals: answers of each question, at least one in all.
        samples: number of resamplings.
        seed: of the resampling.
    """
    sums = np.stack([np.asarray(hits, dtype=float), np.asarray(totals, dtype=float)], axis=1)
    figures = resampled(sums, _ratio, samples=samples, seed=seed)
    return Share(_ratio(sums.sum(axis=0)), interval(figures))


def _ratio(sums: np.ndarray) -> float:
    return float(sums[0] / sums[1])


def sign_test(hits: Sequence[int], totals: Sequence[int]) -> SignTest:
    """Whether more questions than chance would give have a majority for the first side.

    Args:
        hits: answers of each question for the first side.
        totals: all answers of each question.
    """
    first = sum(2 * hit > total for hit, total in zip(hits, totals))
    second = sum(2 * hit < total for hit, total in zip(hits, totals))
    n = first + second
    tail = sum(comb(n, k) for k in range(max(first, second), n + 1)) / 2**n
    return SignTest(first, second, len(hits) - n, min(1.0, 2 * tail))


def fleiss_kappa(counts: np.ndarray) -> Optional[float]:
    """Agreement of annotators beyond chance (Fleiss 1971); numbers of answers may differ.

    Args:
        counts: ``[questions, categories]``, answers; questions with fewer than two say nothing of
            agreement and are left out.

    Returns:
        1 for full agreement, 0 for that of chance; None where no question has two answers, or all
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
