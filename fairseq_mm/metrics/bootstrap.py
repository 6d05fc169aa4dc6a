"""Bootstrap over items: confidence intervals, and paired comparison of two systems.

Koehn 2004 (Statistical significance tests for machine translation evaluation): items are drawn
with replacement, and the corpus metric is computed anew from the items' sums.
"""

from collections.abc import Iterator
from typing import Callable

import numpy as np

# items' statistics summed over one sample of items -> corpus figure
Statistic = Callable[[np.ndarray], float]


def _sample_counts(num_items: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each item is drawn, one sample after the other; the same for the same seed."""
    generator = np.random.default_rng(seed)
    for _ in range(samples):
        drawn = generator.integers(num_items, size=num_items)
        yield np.bincount(drawn, minlength=num_items)


def resampled(sums: np.ndarray, statistic: Statistic, *, samples: int, seed: int) -> np.ndarray:
    """Corpus figures of resampled corpora.

    Args:
        sums: ``[items, statistics]``.
        statistic: sums of one corpus -> figure.
        samples: number of resampled corpora.
        seed: of the generator; equal seeds draw equal items, so two systems are paired.

    Returns:
        ``[samples]``.
    """
    counts = _sample_counts(len(sums), samples, seed)
    return np.array([statistic(count @ sums) for count in counts])


def interval(figures: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Percentile interval of resampled figures."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(figures, [tail, 1 - tail])
    return float(low), float(high)


def p_value(differences: np.ndarray) -> float:
    """Two-sided: how often resampling turns the sign of the difference, never quite 0."""
    smaller = int(min((differences <= 0).sum(), (differences >= 0).sum()))
    return min(1.0, 2 * (smaller + 1) / (len(differences) + 1))
