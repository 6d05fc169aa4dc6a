"""Ranks the true candidates in retrieval: R@K, median and mean rank, and the recall curve.

Defined in Mao et al. 2015, sections 7.2 (R@K, Med r) and 9.2 (the curve: recall against the
percentage of retrieved candidates). Queries are images and candidates are sentences, or the other
way round. Scores are computed in blocks of queries. Ties count against the system: a false
candidate with the score of a true one is placed before it.
"""

from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np

RECALL_AT = (1, 5, 10)


@dataclass(frozen=True)
class TrueRanks:
    """Ranks of all true candidates, in the list of candidates that each query retrieves.

    Q is the number of queries, P the number of pairs of a query and one of its true candidates."""

    query: np.ndarray  # ``[P]`` index of the query of each pair, ascending
    rank: np.ndarray  # ``[P]`` rank of the true candidate, 1 at the top; ascending within a query
    num_candidates: np.ndarray  # ``[Q]`` number of candidates of each query

    @property
    def first(self) -> np.ndarray:
        """Return the rank of each query's best true candidate, ``[queries]``."""
        starts = np.searchsorted(self.query, np.arange(len(self.num_candidates)))
        return self.rank[starts]


def true_ranks(
    score_block: Callable[[int, int], np.ndarray],
    query_groups: Any,
    candidate_groups: Any,
    *,
    block: int = 256,
) -> TrueRanks:
    """Compute the ranks of the true candidates of Q queries among C candidates.

    Args:
        score_block: Function that maps ``(start, end)`` to the scores ``[end - start, C]`` of all
            candidates for the queries ``start`` to ``end - 1``; greater is better. ``-inf`` removes
            a candidate from a query's list.
        query_groups: ``[Q]`` group of each query, such as the number of its image.
        candidate_groups: ``[C]`` group of each candidate; candidates in the query's group are true.
        block: Number of queries per call of ``score_block``.
    """
    queries, candidates = np.asarray(query_groups), np.asarray(candidate_groups)
    order = np.argsort(candidates, kind="stable")
    in_order = candidates[order]
    first = np.searchsorted(in_order, queries, side="left")
    counts = np.searchsorted(in_order, queries, side="right") - first  # [Q]
    if len(queries) == 0 or counts.min() == 0:
        raise ValueError("each query must have a true candidate, and there must be a query.")
    # queries have different numbers of true candidates: rows are padded to the largest
    most = int(counts.max())
    ranks, num_candidates = [], []
    for start in range(0, len(queries), block):
        end = min(start + block, len(queries))
        scores = score_block(start, end)
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
            # false candidates that reach the score, and the k true ones before this one
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
    """Summary of the ranks of a retrieval task."""

    # dict from K to the percentage of queries with a true candidate among the first K
    recall_at: dict[int, float]
    # median, over queries, of the rank of the first true candidate, see :func:`median_rank`: an
    # integer, except in means over several folds of a test set
    median_rank: float
    mean_rank: float  # mean rank of the first true candidate
    queries: int  # number of queries
    candidates: float  # mean number of candidates per query


def summarize_ranks(ranks: TrueRanks) -> RankSummary:
    """Compute R@K in percent for each K of ``RECALL_AT``, and the median and mean rank.

    The rank of a query is the rank of its first true candidate.
    """
    first = ranks.first
    return RankSummary(
        recall_at={k: float(100 * (first <= k).mean()) for k in RECALL_AT},
        median_rank=median_rank(first),
        mean_rank=float(first.mean()),
        queries=len(first),
        candidates=float(ranks.num_candidates.mean()),
    )


def chance_summary(num_true: np.ndarray, num_candidates: np.ndarray) -> RankSummary:
    """Compute the expected results for candidates in random order, the row "Random" of many papers.

    ``num_true`` and ``num_candidates``, ``[queries]``, count each query's candidates. The median
    rank is the smallest rank that the first true candidate reaches with a probability of one half
    or more.
    """
    # queries with equal numbers have equal expectations: a split has few different pairs
    kinds, counts = np.unique(np.stack([num_true, num_candidates]), axis=1, return_counts=True)
    # P(first true candidate is among the first r) for r = 1 ... C, per kind of query
    probabilities = np.ones((len(counts), int(num_candidates.max())))
    for row, (true, candidates) in zip(probabilities, kinds.T.tolist()):
        before = np.arange(candidates)  # number of false candidates before rank r = before + 1
        row[:candidates] = 1 - np.cumprod(
            np.maximum(candidates - true - before, 0) / (candidates - before)
        )
    shares = counts / counts.sum()
    reached = shares @ probabilities
    true, candidates = kinds
    return RankSummary(
        recall_at={k: float(100 * reached[min(k, len(reached)) - 1]) for k in RECALL_AT},
        # a sum of exactly 1/2 may be rounded down
        median_rank=int(np.argmax(reached >= 0.5 - 1e-9)) + 1,
        mean_rank=float(shares @ ((candidates + 1) / (true + 1))),
        queries=int(counts.sum()),
        candidates=float(shares @ candidates),
    )


def median_rank(first: np.ndarray) -> int:
    """Compute the median rank as most papers do, ``floor(median of ranks from 0) + 1``, from the
    ranks ``[queries]`` of each query's first true candidate."""
    return int(np.floor(np.median(first)))


def curve_percentages() -> np.ndarray:
    # integers: steps of .1 would add up their rounding. Closer on the left, which matters most.
    tenths = [np.arange(1, 10), np.arange(10, 90, 2), np.arange(90, 1001, 10)]
    return np.concatenate(tenths) / 10


def recall_curve(ranks: TrueRanks, percentages: Optional[np.ndarray] = None) -> np.ndarray:
    """Compute the recall ``[points]``, in percent, in the first p % of each query's list.

    Mao et al. 2015, figure 4. The recall of a query is the share of its true candidates that are in
    the first p % of its list; the curve is the mean over queries. ``percentages`` are the values of
    p.
    """
    percentages = curve_percentages() if percentages is None else np.asarray(percentages)
    Q = len(ranks.num_candidates)
    # Smallest percentage that reaches the candidate. Multiplying first rounds only once: 1 of 1000
    # is then equal to 0.1.
    needed = 100 * ranks.rank / ranks.num_candidates[ranks.query]
    weights = 1 / np.bincount(ranks.query, minlength=Q)[ranks.query]
    order = np.argsort(needed)
    cumulative = np.concatenate([[0], np.cumsum(weights[order])])
    return 100 * cumulative[np.searchsorted(needed[order], percentages, side="right")] / Q
