"""Ranks of the true candidates: R@K, median and mean rank, recall against percentage.

Mao et al. 2015, section 7.2 (R@K, Med r) and 9.2 (the curve). Queries and candidates are images
and sentences in either role, with any number of true candidates a query. Scores come in blocks,
so that no matrix of all queries and candidates need exist; where they come from (likelihood,
embeddings) does not matter here.

Ties count against the system: a candidate that is not true and scores as much as a true one is
placed before it, so that constant scores give the last rank and not the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, Optional

import numpy as np

RECALL_AT = (1, 5, 10)


@dataclass(frozen=True)
class TrueRanks:
    """Place of every true candidate in the list that is retrieved for its query.

    Args:
        query: ``[P]`` query of each pair of a query and a true candidate, ascending.
        rank: ``[P]`` place of the true candidate, 1 at the top; ascending within a query.
        num_candidates: ``[Q]`` candidates that each query chose from.
    """

    query: np.ndarray
    rank: np.ndarray
    num_candidates: np.ndarray

    @property
    def first(self) -> np.ndarray:
        """``[Q]`` rank of the best true candidate of each query."""
        starts = np.searchsorted(self.query, np.arange(len(self.num_candidates)))
        return self.rank[starts]


def true_ranks(
    score_block: Callable[[int, int], np.ndarray],
    query_groups: Sequence[int],
    candidate_groups: Sequence[int],
    *,
    block: int = 256,
) -> TrueRanks:
    """Ranks of the true candidates of all queries.

    Args:
        score_block: ``(start, end)`` -> ``[end - start, C]`` scores of these queries and all
            candidates, greater is better. ``-inf`` takes a candidate out of a query's list.
        query_groups: ``[Q]`` group of each query, such as the number of its image.
        candidate_groups: ``[C]`` group of each candidate; those of the query's group are the true
            ones.
        block: queries to ask for at once.

    Raises:
        ValueError: if a query has no true candidate, a score is NaN or a true candidate's score is
            ``-inf``, or a block has another shape.
    """
    queries, candidates = np.asarray(query_groups), np.asarray(candidate_groups)
    order = np.argsort(candidates, kind="stable")
    in_order = candidates[order]
    first = np.searchsorted(in_order, queries, side="left")
    counts = np.searchsorted(in_order, queries, side="right") - first  # [Q]
    if len(queries) == 0 or counts.min() == 0:
        raise ValueError(
            f"query {int(counts.argmin())} has no true candidate."
            if len(queries)
            else "there are no queries to rank candidates for."
        )
    most = int(counts.max())
    ranks, num_candidates = [], []
    for start in range(0, len(queries), block):
        end = min(start + block, len(queries))
        scores = score_block(start, end)
        if scores.shape != (end - start, len(candidates)):
            raise ValueError(
                f"scores of queries {start} to {end} must be {(end - start, len(candidates))}, "
                f"but are {scores.shape} instead."
            )
        is_true = np.arange(most) < counts[start:end, None]  # [q, most]
        places = np.minimum(first[start:end, None] + np.arange(most), len(candidates) - 1)
        true_scores = np.take_along_axis(scores, order[places], axis=1)
        if np.isnan(scores).any() or np.isneginf(true_scores[is_true]).any():
            raise ValueError(
                f"scores of queries {start} to {end} must be numbers, finite for true candidates, "
                "but are not."
            )
        true_scores = -np.sort(-np.where(is_true, true_scores, -np.inf), axis=1)  # best first
        block_ranks = np.empty((end - start, most), dtype=np.int64)
        for k in range(most):
            threshold = true_scores[:, k : k + 1]
            # all that reach the score, less the true ones among them, and the k true ones before
            reaching = (scores >= threshold).sum(1) - (true_scores >= threshold).sum(1)
            block_ranks[:, k] = reaching + k + 1
        ranks.append(block_ranks[is_true])
        num_candidates.append(len(candidates) - np.isneginf(scores).sum(1))
    return TrueRanks(
        query=np.repeat(np.arange(len(queries)), counts),
        rank=np.concatenate(ranks),
        num_candidates=np.concatenate(num_candidates),
    )


@dataclass(frozen=True)
class RankSummary:
    """What is reported of a task.

    Args:
        recall_at: K -> percentage of queries with a true candidate among the first K.
        median_rank: of the first true candidate, as :func:`median_rank` has it: a whole number,
            but for means over folds.
        mean_rank: of the first true candidate.
        queries: number of queries.
        candidates: mean number of candidates that a query chose from.
    """

    recall_at: dict[int, float]
    median_rank: float
    mean_rank: float
    queries: int
    candidates: float


def summarize_ranks(ranks: TrueRanks, *, recall_at: Sequence[int] = RECALL_AT) -> RankSummary:
    """R@K in percent, median and mean rank, all of the first true candidate of each query."""
    first = ranks.first
    return RankSummary(
        recall_at={k: float(100 * (first <= k).mean()) for k in recall_at},
        median_rank=median_rank(first),
        mean_rank=float(first.mean()),
        queries=len(first),
        candidates=float(ranks.num_candidates.mean()),
    )


def chance_summary(
    num_true: np.ndarray, num_candidates: np.ndarray, *, recall_at: Sequence[int] = RECALL_AT
) -> RankSummary:
    """Return the expected figures of candidates in random order.

    The papers' row "Random". Its median rank is the smallest rank that the first true candidate
    reaches with probability one half or more.

    Args:
        num_true: ``[Q]`` number of true candidates of each query, 1 or more.
        num_candidates: ``[Q]`` number of all candidates of each query.
        recall_at: K of each R@K.
    """
    kinds, counts = np.unique(np.stack([num_true, num_candidates]), axis=1, return_counts=True)
    # P(first true candidate is among the first r), r = 1 ... C; mean over the queries
    found = np.ones((len(counts), int(num_candidates.max())))
    for row, (true, candidates) in zip(found, kinds.T.tolist()):
        before = np.arange(candidates)  # wrong candidates that stand before rank r = before + 1
        row[:candidates] = 1 - np.cumprod(
            np.maximum(candidates - true - before, 0) / (candidates - before)
        )
    shares = counts / counts.sum()
    reached = shares @ found
    true, candidates = kinds
    return RankSummary(
        recall_at={k: float(100 * reached[min(k, len(reached)) - 1]) for k in recall_at},
        # a sum of 1/2 may be rounded below
        median_rank=int(np.argmax(reached >= 0.5 - 1e-9)) + 1,
        mean_rank=float(shares @ ((candidates + 1) / (true + 1))),
        queries=int(counts.sum()),
        candidates=float(shares @ candidates),
    )


def median_rank(first: np.ndarray) -> int:
    """Median of ``[Q]`` ranks that start at 1, rounded down where it lies between two ranks.

    The usual Med r of image-sentence retrieval, ``floor(median of ranks from 0) + 1``.
    """
    return int(np.floor(np.median(first)))


def curve_percentages() -> np.ndarray:
    """Percentages at which curves are drawn: close together at the left, which matters most."""
    tenths = [np.arange(1, 10), np.arange(10, 90, 2), np.arange(90, 1001, 10)]
    return np.concatenate(tenths) / 10


def recall_curve(ranks: TrueRanks, percentages: Optional[np.ndarray] = None) -> np.ndarray:
    """Share of the true candidates that stand in the first p % of each query's list.

    The curve of Mao et al. 2015, figure 4: mean over queries of the number of true candidates
    retrieved, over the number there are.

    Args:
        ranks: see :func:`true_ranks`.
        percentages: ``[n]`` p of each point, of the query's own number of candidates.

    Returns:
        recall: ``[n]`` percentages.
    """
    percentages = curve_percentages() if percentages is None else np.asarray(percentages)
    Q = len(ranks.num_candidates)
    # smallest percentage that reaches the candidate: one rounding, as 0.1 has for 1 of 1000
    needed = 100 * ranks.rank / ranks.num_candidates[ranks.query]
    weights = 1 / np.bincount(ranks.query, minlength=Q)[ranks.query]
    order = np.argsort(needed)
    cumulative = np.concatenate([[0], np.cumsum(weights[order])])
    return 100 * cumulative[np.searchsorted(needed[order], percentages, side="right")] / Q
