"""Computes statistics of forget gate scores of a split (Yu et al. 2021, section 5.4, Figure 3)."""

import math
from collections.abc import Sequence

import numpy as np

MOST_BINS = 40


def gate_statistics(scores: np.ndarray) -> dict[str, float]:
    """Return ``count``, ``mean``, ``std``, ``min``, ``q25``, ``median``, ``q75`` and ``max``.

    The result is a dict. ``std`` is the standard deviation of a population: it divides by the
    number of scores. There must be one score or more.
    """
    quartiles = np.quantile(scores, [0.25, 0.5, 0.75]).tolist()
    return {
        "count": len(scores),
        "mean": float(np.mean(scores)),
        "std": float(np.std(scores)),
        "min": float(np.min(scores)),
        **dict(zip(("q25", "median", "q75"), quartiles)),
        "max": float(np.max(scores)),
    }


def bin_edges(scores: np.ndarray, most: int = MOST_BINS) -> list[float]:
    """Compute the edges of bins that include all scores.

    The width of the bins is 1, 2 or 5 times a power of ten: the smallest such width with which
    ``most`` bins are enough. If all scores are equal, there is a single bin of width 0.001.
    """
    low, high = float(np.min(scores)), float(np.max(scores))
    exponent = -3 if high == low else math.floor(math.log10((high - low) / most))
    while True:
        # widths that people read easily on an axis
        for factor in (1, 2, 5):
            steps = [score / (factor * 10.0**exponent) for score in (low, high)]
            # 0.3 / 0.1 is a whole number but for its last digits: floor and ceil would add a bin
            first, last = (round(x) if abs(x - round(x)) < 1e-9 else x for x in steps)
            number = max(1, math.ceil(last) - math.floor(first))
            if number <= most:
                start = math.floor(first)
                # rounded, so that edges are 0.3 and not 0.30000000000000004
                return [round((start + i) * factor * 10.0**exponent, 12) for i in range(number + 1)]
        exponent += 1


def count_in_bins(scores: np.ndarray, edges: Sequence[float]) -> list[int]:
    """Count scores in the bins between ``edges``, which are ascending and include all scores. A
    score on an edge counts in the bin to the right of the edge, a score on the last edge in the
    last bin."""
    # rounding of the outer edges may exclude the extreme scores by their last digits
    counts, _ = np.histogram(np.clip(scores, edges[0], edges[-1]), bins=np.asarray(edges))
    return counts.tolist()


def descending_ranks(scores: np.ndarray) -> list[int]:
    """Return the rank of each score: 1 + the number of higher scores."""
    ordered = np.sort(-scores)
    return (np.searchsorted(ordered, -scores) + 1).tolist()
