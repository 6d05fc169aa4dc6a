"""Album ranking: how often a story is likelier under its own images than under other albums'.

A storyteller that ignores its images gives a story the same likelihood under all of them. Each
story competes, draw by draw, under its own images against those of other albums, drawn with
:func:`fairseq_mm.metrics.prompt_ranking.draw_distractors`. Ties count against the model, and two
log-likelihoods closer than :data:`TIE` are a tie: float32 sums of some sixty words differ by less
than that from batch to batch.
"""

from math import comb
from typing import NamedTuple, Optional

import numpy as np

from fairseq_mm.metrics.bootstrap import interval, resampled

TIE = 1e-3  # nats


class Figure(NamedTuple):
    """
    Attributes:
        value: mean over draws and stories.
        interval: 95 % bootstrap interval of it, over stories.
        chance: of guessing.
        all_draws: mean over every possible draw, in closed form; None where a story was not
            scored under all albums.
    """

    value: float
    interval: tuple[float, float]
    chance: float
    all_draws: Optional[float]


class AlbumRanking(NamedTuple):
    """
    Attributes:
        first: share of comparisons in which the own images rank first, between 0 and 1.
        mean_rank: of the own images, from 1.
        ties: share of comparisons that a tie has worsened.
        stories: number of stories.
    """

    first: Figure
    mean_rank: Figure
    ties: float
    stories: int


def candidate_ranks(
    scores: np.ndarray, true: np.ndarray, distractors: np.ndarray, *, tie: float = TIE
) -> np.ndarray:
    """Rank of the own images in each draw: 1 + the number of others that are at least as likely.

    Args:
        scores: ``[stories, albums]`` log-likelihoods; NaN where not scored.
        true: ``[stories]``, column of each story's own album.
        distractors: ``[draws, stories, K]`` columns.
        tie: another that is less likely by no more than this counts as being as likely.

    Returns:
        ``[draws, stories]`` from 1 to K + 1.

    Raises:
        ValueError: naming the story and column, if a needed score is NaN.
    """
    rows = np.arange(len(true))
    own = scores[rows, true]  # [S]
    others = scores[rows[:, None], distractors]  # [draws, S, K]
    lacking = np.isnan(others) | np.isnan(own)[:, None]
    if lacking.any():
        draw, story, place = np.argwhere(lacking)[0]
        column = true[story] if np.isnan(own[story]) else distractors[draw, story, place]
        raise ValueError(
            f"`scores` must be a number for every pair that is drawn, but is NaN for story {story} "
            f"and album {column} instead."
        )
    return 1 + (others >= own[:, None] - tie).sum(axis=2)


def rank_albums(
    scores: np.ndarray,
    true: np.ndarray,
    distractors: np.ndarray,
    *,
    samples: int = 2000,
    seed: int = 1,
) -> AlbumRanking:
    """Ranks of one system.

    Args:
        scores: see :func:`candidate_ranks`.
        true: as there.
        distractors: as there.
        samples: resamplings for the intervals.
        seed: of the resampling.

    Raises:
        ValueError: if there is no story, or a needed score is missing.
    """
    draws, stories, K = distractors.shape
    if not stories or not draws:
        raise ValueError(f"`distractors` must not be empty, but has shape {distractors.shape}.")
    ranks = candidate_ranks(scores, true, distractors)
    limits: tuple[Optional[float], Optional[float]] = (None, None)
    if not np.isnan(scores).any():
        limits = _all_draws(scores, true, K)
    figures = []
    for of_draws, chance, limit in (
        (ranks == 1, 1 / (K + 1), limits[0]),
        (ranks, (K + 2) / 2, limits[1]),
    ):
        of_stories = of_draws.mean(axis=0)
        drawn = resampled(
            of_stories[:, None], lambda sums: float(sums[0] / stories), samples=samples, seed=seed
        )
        figures.append(Figure(float(of_stories.mean()), interval(drawn), chance, limit))
    without_ties = candidate_ranks(scores, true, distractors, tie=-TIE)
    return AlbumRanking(figures[0], figures[1], float((without_ties < ranks).mean()), stories)


def _all_draws(scores: np.ndarray, true: np.ndarray, drawn: int) -> tuple[float, float]:
    """Share of first ranks, and mean rank, over all draws of K = ``drawn`` other albums.

    Of M others, w are less likely than the own one: none of the drawn is at least as likely with
    probability C(w, K) / C(M, K), and K (M - w) / M are on average.
    """
    own = scores[np.arange(len(true)), true][:, None]
    M = scores.shape[1] - 1
    lower = (scores < own - TIE).sum(axis=1)
    first = np.array([comb(w, drawn) / comb(M, drawn) for w in lower.tolist()])
    return float(first.mean()), float((1 + drawn * (M - lower) / M).mean())
