"""Distribution of forget gate scores over a split (Yu et al. 2021, section 5.4, Figure 3)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MOST_BINS = 40


class Histogram(NamedTuple):
    """Edges ``[bins + 1]``, multiples of the bins' width, and counts ``[bins]`` of scores.

    A score on an edge counts in the bin to its right, on the last edge in the bin to its left.
    """

    edges: list[float]
    counts: list[int]


def gate_statistics(scores: np.ndarray) -> dict[str, float]:
    """Compute ``count``, ``mean``, ``std``, ``min``, ``q25``, ``median``, ``q75`` and ``max``.

    ``std`` is of a population, not of a sample. There must be one score or more.
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
    """Compute edges of bins for all scores, with a width of 1, 2 or 5 times a power of ten.

    The narrowest bins are used of which at most ``most`` are necessary. Equal scores get a single
    bin of width 0.001.
    """
    low, high = float(np.min(scores)), float(np.max(scores))
    exponent = -3 if high == low else math.floor(math.log10((high - low) / most))
    while True:
        # widths that people read easily on an axis
        for factor in (1, 2, 5):
            first, last = (_in_steps(x, factor, exponent) for x in (low, high))
            number = max(1, math.ceil(last) - math.floor(first))
            if number <= most:
                start = math.floor(first)
                # rounded, so that edges are 0.3 and not 0.30000000000000004
                return [round((start + i) * factor * 10.0**exponent, 12) for i in range(number + 1)]
        exponent += 1


def _in_steps(score: float, factor: int, exponent: int) -> float:
    """Return a score in bin widths; one that equals an edge except for rounding is the edge."""
    steps = score / (factor * 10.0**exponent)
    return round(steps) if abs(steps - round(steps)) < 1e-9 else steps


def gate_histogram(scores: np.ndarray, edges: Sequence[float]) -> Histogram:
    """Count scores in the bins between ascending edges, see :func:`bin_edges`."""
    # rounding of the outer edges may exclude the extreme scores by their last digits
    inside = np.clip(scores, edges[0], edges[-1])
    counts, _ = np.histogram(inside, bins=np.asarray(edges))
    return Histogram(list(edges), counts.tolist())


def descending_ranks(scores: np.ndarray) -> list[int]:
    """Return the ranks of scores, the highest has rank 1; equal scores share their best rank."""
    ordered = np.sort(-scores)
    return (np.searchsorted(ordered, -scores) + 1).tolist()
