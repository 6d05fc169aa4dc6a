"""How often a story is likelier under its own prompt, or its own images, than under others.

Prompts: Fan et al. 2018, section 5.5, "Stories are decoded under 10 different prompts, 9 randomly
sampled prompts and 1 true corresponding prompt, [...] We measure the percentage of cases where the
true prompt is the most likely to generate the story." One draw of 9 is noisy, so there are several,
and their limit too: what all possible draws give on average. Albums, of visual stories, in the same
way: a model that ignores its images gives a story the same likelihood under all of them.

Which pairs of story and condition must be scored is known beforehand:

    columns = condition_columns(prompts)                   # equal texts share a column
    distractors = draw_distractors(columns.true, len(columns.texts), draws=20, seed=1)
    pairs = needed_pairs(columns.true, distractors)        # score these
    scores = score_matrix(pairs, log_likelihoods, len(columns.true), len(columns.texts))
    result = rank_prompts(scores, columns.true, distractors)

``len(columns.texts)`` must exceed the number of distractors. Log-likelihoods are sums over a
story's tokens; only those of one story are compared with each other.
"""

from collections.abc import Callable, Iterable, Sequence
from math import comb
from typing import NamedTuple, Optional

import numpy as np

from fairseq_mm.metrics.bootstrap import interval, resampled

DISTRACTORS = 9
DRAWS = 20
# nats; float32 sums of some sixty words differ by less from batch to batch
TIE = 1e-3

Interval = tuple[float, float]


class Columns(NamedTuple):
    """Different conditions of some stories.

    Attributes:
        texts: each different one, in the order of first occurrence: the columns.
        true: ``[stories]``, column of each story's own.
    """

    texts: list[str]
    true: np.ndarray


class Figure(NamedTuple):
    """
    Attributes:
        value: mean over draws and stories.
        interval: 95 % bootstrap interval of it.
        chance: of guessing.
        all_draws: mean over every possible draw, in closed form; None where a story was not scored
            under all conditions.
        all_draws_interval: 95 % bootstrap interval of that, over stories, where it is computed.
    """

    value: float
    interval: Interval
    chance: float
    all_draws: Optional[float]
    all_draws_interval: Optional[Interval] = None


class PromptRanking(NamedTuple):
    """
    Attributes:
        accuracy: share of comparisons (draw and story) in which the own prompt is the likeliest,
            between 0 and 1; a guess among the likeliest where there are several. The interval is
            over stories and draws.
        per_draw: ``[draws]`` accuracies.
        stories: number of stories.
        ties: share of the comparisons in which a distractor scores as high as the true prompt and
            none higher.
    """

    accuracy: Figure
    per_draw: np.ndarray
    stories: int
    ties: float


class AlbumRanking(NamedTuple):
    """
    Attributes:
        first: share of comparisons in which the own images rank first, between 0 and 1.
        mean_rank: of the own images, from 1.
        stories: number of stories.
        ties: share of comparisons that a tie has worsened.
    """

    first: Figure
    mean_rank: Figure
    stories: int
    ties: float


def condition_columns(texts: Iterable[str]) -> Columns:
    """Columns of the stories' conditions: white space aside, equal texts share one."""
    column_of: dict[str, int] = {}
    true = [column_of.setdefault(" ".join(text.split()), len(column_of)) for text in texts]
    return Columns(list(column_of), np.array(true, dtype=np.int64))


def draw_distractors(
    true: np.ndarray,
    num_columns: int,
    *,
    draws: int = DRAWS,
    distractors: int = DISTRACTORS,
    seed: int = 1,
    on_draw: Optional[Callable[[], object]] = None,
) -> np.ndarray:
    """Draws, for each draw and story, different conditions other than the story's own.

    A draw depends on ``seed`` and its own number alone, so more draws begin with the same ones.

    Args:
        true: ``[stories]``, column of each story's own condition.
        num_columns: columns to draw from, all equally likely.
        draws: number of draws.
        distractors: conditions a draw and story.
        seed: of the draws.
        on_draw: called after each draw.

    Returns:
        ``[draws, stories, distractors]``, columns.

    Raises:
        ValueError: if there are too few columns, or one of ``true`` is none of them.
    """
    if num_columns <= distractors:
        raise ValueError(
            f"`num_columns` must be more than the {distractors} distractors, but is {num_columns} "
            "instead: that many are needed beside the true one."
        )
    if len(true) and not (true.min() >= 0 and true.max() < num_columns):
        raise ValueError(
            f"`true` must hold columns from 0 to {num_columns - 1}, but holds {true.min()} to "
            f"{true.max()} instead."
        )
    drawn = np.empty((draws, len(true), distractors), dtype=np.int64)
    for draw in range(draws):
        generator = np.random.default_rng([seed, draw])
        for story in range(len(true)):
            drawn[draw, story] = generator.choice(num_columns - 1, size=distractors, replace=False)
        if on_draw is not None:
            on_draw()
    drawn += drawn >= true[:, None]  # the own one is stepped over
    return drawn


def needed_pairs(true: np.ndarray, distractors: np.ndarray) -> np.ndarray:
    """Pairs ``[N, 2]`` of story and column that the draws compare: each once, ordered."""
    draws, stories, _ = distractors.shape
    own = np.broadcast_to(true[:, None], (draws, stories, 1))
    columns = np.concatenate([own, distractors], axis=2)
    width = int(columns.max(initial=0)) + 1
    # numbers are sorted far faster than pairs
    numbers = np.unique(np.arange(stories)[:, None] * width + columns)
    return np.stack(np.divmod(numbers, width), axis=1)


def score_matrix(
    pairs: np.ndarray, values: Sequence[float], num_stories: int, num_columns: int
) -> np.ndarray:
    """Scores ``[stories, columns]`` of pairs; NaN where a pair was not scored."""
    scores = np.full((num_stories, num_columns), np.nan)
    scores[pairs[:, 0], pairs[:, 1]] = values
    return scores


def _compared(
    scores: np.ndarray, true: np.ndarray, distractors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``[stories, 1]`` scores of the own conditions, ``[draws, stories, K]`` of those drawn.

    Raises:
        ValueError: naming the story and column, if a needed score is NaN, or nothing is drawn.
    """
    if not distractors.size:
        raise ValueError(f"`distractors` must not be empty, but has shape {distractors.shape}.")
    rows = np.arange(len(true))[:, None]
    own = scores[rows, true[:, None]]
    others = scores[rows, distractors]
    lacking = np.isnan(others) | np.isnan(own)
    if lacking.any():
        draw, story, place = np.argwhere(lacking)[0]
        column = true[story] if np.isnan(own[story]) else distractors[draw, story, place]
        raise ValueError(
            f"`scores` must be a number for every pair of needed_pairs(), but is NaN for story "
            f"{story} and column {column} instead."
        )
    return own, others


def draw_credits(scores: np.ndarray, true: np.ndarray, distractors: np.ndarray) -> np.ndarray:
    """Whether the true prompt is the likeliest in each draw.

    Args:
        scores: ``[stories, columns]``, log-likelihoods; NaN where not scored.
        true: ``[stories]``, columns.
        distractors: ``[draws, stories, distractors]``, columns.

    Returns:
        ``[draws, stories]``: 1 where it is, 0 where another is likelier, and 1 / number of the
        likeliest where it is one of several: what a guess among them gives.

    Raises:
        ValueError: naming the story and column, if a needed score is NaN.
    """
    own, others = _compared(scores, true, distractors)
    equal = (others == own).sum(axis=2)
    return np.where((others > own).any(axis=2), 0.0, 1 / (1 + equal))


def all_draws_credits(
    scores: np.ndarray, true: np.ndarray, *, distractors: int = DISTRACTORS
) -> np.ndarray:
    """Mean credit of each story over all possible draws.

    Of the M other prompts, w score lower than the true one and t equal. Draws without a higher
    one, with j equal ones, give 1 / (1 + j); summed over j by Vandermonde's identity:
    (C(t + w + 1, K + 1) - C(w, K + 1)) / ((t + 1) C(M, K)) with K distractors. Without ties that
    is C(w, K) / C(M, K), the probability that no better prompt is drawn.

    Args:
        scores: ``[stories, columns]``, without NaN.
        true: ``[stories]``, columns.
        distractors: K.

    Returns:
        ``[stories]``.
    """
    own = scores[np.arange(len(true)), true][:, None]
    lower = (scores < own).sum(axis=1)
    equal = (scores == own).sum(axis=1) - 1
    possible = comb(scores.shape[1] - 1, distractors)
    return np.array(
        [
            (comb(t + w + 1, distractors + 1) - comb(w, distractors + 1)) / ((t + 1) * possible)
            for t, w in zip(equal.tolist(), lower.tolist())
        ]
    )


def rank_prompts(
    scores: np.ndarray,
    true: np.ndarray,
    distractors: np.ndarray,
    *,
    samples: int = 2000,
    seed: int = 1,
) -> PromptRanking:
    """Prompt ranking accuracy of one system.

    Args:
        scores: see :func:`draw_credits`.
        true: as there.
        distractors: as there.
        samples: resamplings for the intervals.
        seed: of the resampling.

    Raises:
        ValueError: if there is no story, or a needed score is missing.
    """
    draws, stories, K = distractors.shape
    credit = draw_credits(scores, true, distractors)
    generator = np.random.default_rng(seed)
    # stories and draws are drawn with replacement, independently: how often is each taken
    of_stories = generator.multinomial(stories, np.full(stories, 1 / stories), size=samples)
    of_draws = generator.multinomial(draws, np.full(draws, 1 / draws), size=samples)
    drawn = np.einsum("nd,ds,ns->n", of_draws, credit, of_stories, optimize=True)
    all_draws, all_draws_interval = None, None
    if not np.isnan(scores).any():
        limits = all_draws_credits(scores, true, distractors=K)
        all_draws = float(limits.mean())
        all_draws_interval = interval(of_stories @ limits / stories)
    accuracy = Figure(
        value=float(credit.mean()),
        interval=interval(drawn / (draws * stories)),
        chance=1 / (K + 1),
        all_draws=all_draws,
        all_draws_interval=all_draws_interval,
    )
    ties = float(((credit > 0) & (credit < 1)).mean())
    return PromptRanking(accuracy, credit.mean(axis=1), stories, ties)


def candidate_ranks(
    scores: np.ndarray, true: np.ndarray, distractors: np.ndarray, *, tie: float = TIE
) -> np.ndarray:
    """Rank of the own images in each draw: 1 + the number of others that are at least as likely.

    Args:
        scores: see :func:`draw_credits`.
        true: as there.
        distractors: as there.
        tie: another that is less likely by no more than this counts as being as likely.

    Returns:
        ``[draws, stories]`` from 1 to K + 1.

    Raises:
        ValueError: naming the story and column, if a needed score is NaN.
    """
    own, others = _compared(scores, true, distractors)
    return 1 + (others >= own - tie).sum(axis=2)


def rank_albums(
    scores: np.ndarray,
    true: np.ndarray,
    distractors: np.ndarray,
    *,
    samples: int = 2000,
    seed: int = 1,
) -> AlbumRanking:
    """Ranks of one system, of what :func:`rank_prompts` takes; ties count against it, and the
    intervals are over stories.

    Raises:
        ValueError: as there.
    """
    stories, K = distractors.shape[1:]
    ranks = candidate_ranks(scores, true, distractors)
    limits: tuple[Optional[float], Optional[float]] = (None, None)
    if not np.isnan(scores).any():
        limits = _all_draws_ranks(scores, true, K)
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
    return AlbumRanking(figures[0], figures[1], stories, float((without_ties < ranks).mean()))


def _all_draws_ranks(scores: np.ndarray, true: np.ndarray, drawn: int) -> tuple[float, float]:
    """Share of first ranks, and mean rank, over all draws of K = ``drawn`` other albums.

    Of M others, w are less likely than the own one: none of the drawn is at least as likely with
    probability C(w, K) / C(M, K), and K (M - w) / M are on average.
    """
    own = scores[np.arange(len(true)), true][:, None]
    M = scores.shape[1] - 1
    lower = (scores < own - TIE).sum(axis=1)
    first = np.array([comb(w, drawn) / comb(M, drawn) for w in lower.tolist()])
    return float(first.mean()), float((1 + drawn * (M - lower) / M).mean())
