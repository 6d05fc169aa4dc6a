"""Measures how often a story is likeliest under its own condition, which is a prompt or images.

Fan et al. 2018, section 5.5: "Stories are decoded under 10 different prompts, 9 randomly sampled
prompts and 1 true corresponding prompt, [...] We measure the percentage of cases where the true
prompt is the most likely to generate the story." A single sample of 9 prompts per story is noisy,
so several samples ("draws") are compared. Albums of visual stories are ranked in the same way. The
caller scores only the necessary pairs of story and condition:

    columns = condition_columns(prompts)                   # equal texts share a column
    distractors = draw_distractors(columns.true, len(columns.texts), draws=20, seed=1)
    pairs = needed_pairs(columns.true, distractors)        # score these
    scores = ...  # [stories, columns], NaN for other pairs
    result = rank_prompts(scores, columns.true, distractors)

Log-likelihoods are sums over a story's tokens; only those of the same story are compared.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Optional

import numpy as np

from fairseq_mm.metrics.bootstrap import interval, resampled

DISTRACTORS = 9
DRAWS = 20
# Difference in nats up to which log-likelihoods count as equal: float32 sums over some sixty words
# differ by less between batches.
TIE = 1e-3

Interval = tuple[float, float]


class Columns(NamedTuple):
    """Distinct conditions (prompts or image sequences) of a list of stories.

    Each condition is a column of a score matrix, in which each story is a row."""

    texts: list[str]  # text of the condition of each column, in order of first occurrence
    true: np.ndarray  # ``[stories]`` column of each story's own condition


class Figure(NamedTuple):
    """Mean of a score or rank over stories and draws, with its confidence interval.

    A draw is one random sample of distractors (prompts or images of other stories) for every story.
    """

    value: float  # the mean
    interval: Interval  # 95 % bootstrap interval of ``value``
    chance: float  # expectation of ``value`` if all scores were random


class PromptRanking(NamedTuple):
    """Share of comparisons in which a story is likeliest under its own prompt.

    A comparison is made for each story and each draw, a random sample of other prompts."""

    # the share. A tie of the own prompt with other prompts counts like a guess among them. The
    # confidence interval is computed by resampling both stories and draws
    accuracy: Figure
    per_draw: list[float]  # share of each draw
    stories: int  # number of stories
    # share of comparisons in which the own prompt and another prompt tie as the likeliest
    ties: float


class AlbumRanking(NamedTuple):
    """Ranks of the stories' own albums among albums of other stories.

    A comparison is made for each story and each draw, a random sample of other albums."""

    first: Figure  # share of comparisons in which the own album has rank 1
    mean_rank: Figure  # mean rank of the own album, counted from 1
    stories: int  # number of stories
    ties: float  # share of comparisons in which a tie has worsened the rank of the own album


def condition_columns(texts: Iterable[str]) -> Columns:
    """Number the distinct conditions, such as prompts, as columns of a score matrix; conditions
    that differ only in white space are equal."""
    # equal texts share a column: a prompt must not be a distractor of itself
    column_by_text: dict[str, int] = {}
    true = [
        column_by_text.setdefault(" ".join(text.split()), len(column_by_text)) for text in texts
    ]
    return Columns(list(column_by_text), np.array(true, dtype=np.int64))


def draw_distractors(
    true: np.ndarray,
    num_columns: int,
    *,
    draws: int = DRAWS,
    distractors: int = DISTRACTORS,
    seed: int = 1,
    on_draw: Optional[Callable[[], object]] = None,
) -> np.ndarray:
    """Sample, for each story and in each of several draws, other conditions (such as prompts).

    Returns the columns ``[draws, stories, distractors]`` of the sampled conditions.

    Args:
        true: ``[stories]`` column of each story's own condition.
        num_columns: Number of distinct conditions, more than ``distractors``.
        draws: Number of samples per story.
        distractors: Number of conditions in a sample, all different.
        seed: Seed of the random numbers.
        on_draw: Function that is called after each draw, to show progress.
    """
    columns = np.empty((draws, len(true), distractors), dtype=np.int64)
    for draw in range(draws):
        # a generator for each draw, so that more draws begin with the same ones
        generator = np.random.default_rng([seed, draw])
        for story in range(len(true)):
            columns[draw, story] = generator.choice(
                num_columns - 1, size=distractors, replace=False
            )
        if on_draw is not None:
            on_draw()
    # sampled from one column less: columns from the own one on are shifted to skip it
    columns += columns >= true[:, None]
    return columns


def needed_pairs(true: np.ndarray, distractors: np.ndarray) -> np.ndarray:
    """Return the sorted pairs ``[pairs, 2]`` of a story and a column whose scores the ranking
    needs: each story with its own condition and with the conditions sampled for it."""
    draws, stories, _ = distractors.shape
    own = np.broadcast_to(true[:, None], (draws, stories, 1))
    columns = np.concatenate([own, distractors], axis=2)
    width = int(columns.max(initial=0)) + 1
    # one integer per pair, since numpy sorts integers far faster than pairs
    numbers = np.unique(np.arange(stories)[:, None] * width + columns)
    return np.stack(np.divmod(numbers, width), axis=1)


def _gather_scores(
    scores: np.ndarray, true: np.ndarray, distractors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of the stories under their own conditions, ``[stories, 1]``, and under the
    sampled conditions, ``[draws, stories, distractors]``."""
    rows = np.arange(len(true))[:, None]
    own = scores[rows, true[:, None]]
    others = scores[rows, distractors]
    # comparisons with NaN are False: with a missing score the true condition would win
    if np.isnan(others).any() or np.isnan(own).any():
        raise ValueError(
            "`scores` must be a number for each of needed_pairs(), but is NaN for one."
        )
    return own, others


def draw_credits(scores: np.ndarray, true: np.ndarray, distractors: np.ndarray) -> np.ndarray:
    """Compute the credit ``[draws, stories]`` of each story in each draw of other prompts.

    The credit is 1 if the story is likeliest under its own prompt, and 0 if it is likelier under
    another prompt. If n prompts including the own prompt tie as the likeliest, the credit is 1 / n,
    the expectation of a guess among them.

    Args:
        scores: ``[stories, columns]``, log-likelihood of each story under the prompt of each
            column; NaN for pairs that were not scored.
        true: ``[stories]``, column of the story's own prompt.
        distractors: ``[draws, stories, distractors]``, columns of the sampled other prompts.
    """
    own, others = _gather_scores(scores, true, distractors)
    equal = (others == own).sum(axis=2)
    return np.where((others > own).any(axis=2), 0.0, 1 / (1 + equal))


def rank_prompts(
    scores: np.ndarray,
    true: np.ndarray,
    distractors: np.ndarray,
    *,
    samples: int = 2000,
    seed: int = 1,
) -> PromptRanking:
    """Compute the prompt ranking accuracy of one system, with the arrays of :func:`draw_credits`;
    ``samples`` and ``seed`` are for the bootstrap."""
    draws, stories, K = distractors.shape
    credit = draw_credits(scores, true, distractors)
    generator = np.random.default_rng(seed)
    # stories and draws are resampled independently, since both are random samples
    story_counts = generator.multinomial(stories, np.full(stories, 1 / stories), size=samples)
    draw_counts = generator.multinomial(draws, np.full(draws, 1 / draws), size=samples)
    # all resampled means as one product of counts: no resampled matrix is copied
    totals = np.einsum("nd,ds,ns->n", draw_counts, credit, story_counts, optimize=True)
    accuracy = Figure(
        value=float(credit.mean()),
        interval=interval(totals / (draws * stories)),
        chance=1 / (K + 1),
    )
    ties = float(((credit > 0) & (credit < 1)).mean())
    return PromptRanking(accuracy, credit.mean(axis=1).tolist(), stories, ties)


def candidate_ranks(
    scores: np.ndarray, true: np.ndarray, distractors: np.ndarray, *, tie: float = TIE
) -> np.ndarray:
    """Compute the ranks ``[draws, stories]`` of the stories' own albums: 1 + the number of sampled
    albums under which the story is at least as likely. A log-likelihood that is lower by at most
    ``tie`` nats counts as equal. The arrays are the same as in :func:`draw_credits`.
    """
    own, others = _gather_scores(scores, true, distractors)
    return 1 + (others >= own - tie).sum(axis=2)


def rank_albums(
    scores: np.ndarray,
    true: np.ndarray,
    distractors: np.ndarray,
    *,
    samples: int = 2000,
    seed: int = 1,
) -> AlbumRanking:
    """Rank each story's own album among the sampled albums, like :func:`rank_prompts`. In a tie the
    own album gets the worst rank. Confidence intervals are computed by resampling stories."""
    stories, K = distractors.shape[1:]
    ranks = candidate_ranks(scores, true, distractors)
    figures = []
    for values, chance in (
        (ranks == 1, 1 / (K + 1)),
        # the mean of the ranks 1 to K + 1
        (ranks, (K + 2) / 2),
    ):
        means = values.mean(axis=0)  # [stories]
        scores_of_samples = resampled(
            means[:, None], lambda sums: float(sums[0] / stories), samples=samples, seed=seed
        )
        figures.append(Figure(float(means.mean()), interval(scores_of_samples), chance))
    # ranks in which near-equal scores count for the system: the difference is the ties' doing
    without_ties = candidate_ranks(scores, true, distractors, tie=-TIE)
    return AlbumRanking(figures[0], figures[1], stories, float((without_ties < ranks).mean()))
