"""Resamples the texts of a test set (bootstrap) for confidence intervals and comparisons.

As in Koehn 2004 (Statistical significance tests for machine translation evaluation), test items are
sampled with replacement, and the corpus metric is recomputed from the sums of the sampled items.
"""

from typing import Callable

import numpy as np

# function from statistics that are summed over one sample of items to a corpus score
Statistic = Callable[[np.ndarray], float]


def resampled(sums: np.ndarray, statistic: Statistic, *, samples: int, seed: int) -> np.ndarray:
    """Compute the corpus scores ``[samples]`` of corpora that are sampled from the test items.

    Calls with equal seeds and numbers of items sample the same items, so that the scores of two
    systems are paired. ``sums`` are ``[items, statistics]``; ``statistic`` computes a corpus score
    from their sum over the items.
    """
    generator = np.random.default_rng(seed)
    scores = []
    for _ in range(samples):
        items = generator.integers(len(sums), size=len(sums))
        # counts times sums: the sampled rows are never copied
        scores.append(statistic(np.bincount(items, minlength=len(sums)) @ sums))
    return np.array(scores)


def interval(figures: np.ndarray) -> tuple[float, float]:
    """Return the 2.5 % and 97.5 % quantiles of ``figures``, the scores of resampled corpora."""
    low, high = np.quantile(figures, [0.025, 0.975])
    return float(low), float(high)


def p_value(differences: np.ndarray) -> float:
    """Compute the two-sided p-value of the differences between two systems on resampled corpora:
    twice the share of positive or of negative differences, whichever is smaller."""
    smaller = int(min((differences <= 0).sum(), (differences >= 0).sum()))
    # the observed sample counts as well, so that p is never 0
    return min(1.0, 2 * (smaller + 1) / (len(differences) + 1))
