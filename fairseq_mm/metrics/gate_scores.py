"""How forget gates' scores are distributed over a split (Yu et al. 2021, section 5.4, Figure 3)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MOST_BINS = 40


class Histogram(NamedTuple):
    """
    Attributes:
        edges: ``[bins + 1]``, multiples of the bins' width.
        counts: ``[bins]``; a score on an edge counts to its right, on the last one to its left.
    """

    edges: list[float]
    counts: list[int]


def gate_statistics(scores: np.ndarray) -> dict[str, float]:
    """``count``, ``mean``, ``std`` (over all, not of a sample), ``min``, ``q25``, ``median``,
    ``q75`` and ``max`` of one score or more."""
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
    """Edges of bins of 1, 2 or 5 times a power of ten that hold all scores.

    Args:
        scores: one or more.
        most: bins; the narrowest that are not more are taken. Scores that are all equal have one
            of 0.001.
    """
    low, high = float(np.min(scores)), float(np.max(scores))
    exponent = -3 if high == low else math.floor(math.log10((high - low) / most))
    while True:
        for factor in (1, 2, 5):
            first, last = (_in_steps(x, factor, exponent) for x in (low, high))
            number = max(1, math.ceil(last) - math.floor(first))
            if number <= most:
                start = math.floor(first)
                return [round((start + i) * factor * 10.0**exponent, 12) for i in range(number + 1)]
        exponent += 1


def _in_steps(score: float, factor: int, exponent: int) -> float:
    """A score as a number of steps; one that is an edge but for its last digits is the edge."""
    steps = score / (factor * 10.0**exponent)
    return round(steps) if abs(steps - round(steps)) < 1e-9 else steps


def gate_histogram(scores: np.ndarray, edges: Sequence[float]) -> Histogram:
    """
    Args:
        scores: any number, between the first edge and the last.
        edges: ascending, see :func:`bin_edges`.
    """
    inside = np.clip(scores, edges[0], edges[-1])  # what an edge's last digits leave out
    counts, _ = np.histogram(inside, bins=np.asarray(edges))
    return Histogram(list(edges), counts.tolist())


def descending_ranks(scores: np.ndarray) -> list[int]:
    """Places of scores, the highest first, from 1; equal ones share the best of theirs."""
    ordered = np.sort(-scores)
    return (np.searchsorted(ordered, -scores) + 1).tolist()
