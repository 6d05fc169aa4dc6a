"""Prompt ranking: how often a story is most likely under its own prompt (Fan et al. 2018, 5.5).

"Stories are decoded under 10 different prompts, 9 randomly sampled prompts and 1 true corresponding
prompt, [...] We measure the percentage of cases where the true prompt is the most likely to
generate the story." One draw of 9 prompts is noisy, so there are several, and their limit too: the
accuracy that all possible draws have on average. Which pairs of story and prompt must be scored is
known beforehand:

    columns = prompt_columns(prompts)                      # equal texts share a column
    distractors = draw_distractors(columns.true, len(columns.texts), draws=20, seed=1)
    pairs = needed_pairs(columns.true, distractors)        # score these
    scores = score_matrix(pairs, log_likelihoods, len(columns.true), len(columns.texts))
    result = rank_prompts(scores, columns.true, distractors)

``len(columns.texts)`` must exceed the number of distractors. Log-likelihoods are sums over a
story's tokens; only those of one story are compared with each other.
"""

from collections.abc import Iterable, Sequence
from math import comb
from typing import NamedTuple, Optional

import numpy as np

from fairseq_mm.metrics.bootstrap import interval

DISTRACTORS = 9
DRAWS = 20


class PromptColumns(NamedTuple):
    """Different prompts of some stories.

    Attributes:
        texts: each different prompt, in the order of first occurrence: the columns.
        true: ``[stories]``, column of each story's own prompt.
    """

    texts: list[str]
    true: np.ndarray


class PromptRanking(NamedTuple):
    """Accuracies between 0 and 1.

    Attributes:
        accuracy: mean over draws and stories.
        interval: 95 % bootstrap interval of it, over stories and draws.
        per_draw: ``[draws]``.
        all_draws: mean over every possible draw, in closed form; None where a story was not
            scored under all prompts.
        all_draws_interval: 95 % bootstrap interval of that, over stories.
        chance: accuracy of guessing.
        stories: number of stories.
        ties: share of the comparisons (draw and story) in which a distractor scores as high as
            the true prompt and none higher.
    """

    accuracy: float
    interval: tuple[float, float]
    per_draw: np.ndarray
    all_draws: Optional[float]
    all_draws_interval: Optional[tuple[float, float]]
    chance: float
    stories: int
    ties: float


def prompt_columns(prompts: Iterable[str]) -> PromptColumns:
    """Columns of the stories' prompts: white space aside, equal texts share one."""
    column_of: dict[str, int] = {}
    true = [column_of.setdefault(" ".join(prompt.split()), len(column_of)) for prompt in prompts]
    return PromptColumns(list(column_of), np.array(true, dtype=np.int64))


def draw_distractors(
    true: np.ndarray,
    num_prompts: int,
    *,
    draws: int = DRAWS,
    distractors: int = DISTRACTORS,
    seed: int = 1,
) -> np.ndarray:
    """Draws, for each draw and story, different prompts other than the story's own.

    A draw depends on ``seed`` and its own number alone, so more draws begin with the same ones.

    Args:
        true: ``[stories]``, column of each story's own prompt.
        num_prompts: columns to draw from, all equally likely.
        draws: number of draws.
        distractors: prompts a draw and story.
        seed: of the draws.

    Returns:
        ``[draws, stories, distractors]``, columns.

    Raises:
        ValueError: if there are too few prompts, or a column is none of them.
    """
    if num_prompts <= distractors:
        raise ValueError(
            f"`num_prompts` must be more than the {distractors} distractors, but is {num_prompts} "
            "instead: that many different prompts are needed beside the true one."
        )
    if len(true) and not (true.min() >= 0 and true.max() < num_prompts):
        raise ValueError(
            f"`true` must hold columns from 0 to {num_prompts - 1}, but holds {true.min()} to "
            f"{true.max()} instead."
        )
    drawn = np.empty((draws, len(true), distractors), dtype=np.int64)
    for draw in range(draws):
        generator = np.random.default_rng([seed, draw])
        for story in range(len(true)):
            drawn[draw, story] = generator.choice(num_prompts - 1, size=distractors, replace=False)
    drawn += drawn >= true[:, None]  # the own prompt is stepped over
    return drawn


def needed_pairs(true: np.ndarray, distractors: np.ndarray) -> np.ndarray:
    """Pairs ``[N, 2]`` of story and column that the draws compare: each once, ordered."""
    draws, stories, _ = distractors.shape
    own = np.broadcast_to(true[:, None], (draws, stories, 1))
    columns = np.concatenate([own, distractors], axis=2)
    rows = np.broadcast_to(np.arange(stories)[:, None], columns.shape)
    return np.unique(np.stack([rows.ravel(), columns.ravel()], axis=1), axis=0)


def score_matrix(
    pairs: np.ndarray, values: Sequence[float], num_stories: int, num_prompts: int
) -> np.ndarray:
    """Scores ``[stories, prompts]`` of pairs; NaN where a pair was not scored."""
    scores = np.full((num_stories, num_prompts), np.nan)
    scores[pairs[:, 0], pairs[:, 1]] = values
    return scores


def draw_credits(scores: np.ndarray, true: np.ndarray, distractors: np.ndarray) -> np.ndarray:
    """Whether the true prompt is the likeliest in each draw.

    Args:
        scores: ``[stories, prompts]``, log-likelihoods; NaN where not scored.
        true: ``[stories]``, columns.
        distractors: ``[draws, stories, distractors]``, columns.

    Returns:
        ``[draws, stories]``: 1 where it is, 0 where another is likelier, and 1 / number of the
        likeliest where it is one of several: what a guess among them gives.

    Raises:
        ValueError: naming the story and column, if a needed score is NaN.
    """
    rows = np.arange(len(true))
    own = scores[rows, true]  # [S]
    others = scores[rows[:, None], distractors]  # [draws, S, distractors]
    lacking = np.isnan(others) | np.isnan(own)[:, None]
    if lacking.any():
        draw, story, place = np.argwhere(lacking)[0]
        column = true[story] if np.isnan(own[story]) else distractors[draw, story, place]
        raise ValueError(
            f"`scores` must be a number for every pair of needed_pairs(), but is NaN for story "
            f"{story} and prompt {column} instead."
        )
    higher = (others > own[:, None]).any(axis=2)
    equal = (others == own[:, None]).sum(axis=2)
    return np.where(higher, 0.0, 1 / (1 + equal))


def all_draws_credits(
    scores: np.ndarray, true: np.ndarray, *, distractors: int = DISTRACTORS
) -> np.ndarray:
    """Mean credit of each story over all possible draws.

    Of the M other prompts, w score lower than the true one and t equal. Draws without a higher
    one, with j equal ones, give 1 / (1 + j); summed over j by Vandermonde's identity:
    (C(t + w + 1, K + 1) - C(w, K + 1)) / ((t + 1) C(M, K)) with K distractors. Without ties that
    is C(w, K) / C(M, K), the probability that no better prompt is drawn.

    Args:
        scores: ``[stories, prompts]``, without NaN.
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
        scores: ``[stories, prompts]``, log-likelihoods; NaN where not scored.
        true: ``[stories]``, columns of the stories' own prompts.
        distractors: ``[draws, stories, distractors]``, from :func:`draw_distractors`.
        samples: resamplings for the intervals.
        seed: of the resampling.

    Raises:
        ValueError: if there is no story, or a needed score is missing.
    """
    draws, stories, K = distractors.shape
    if not stories or not draws:
        raise ValueError(f"`distractors` must not be empty, but has shape {distractors.shape}.")
    credit = draw_credits(scores, true, distractors)
    generator = np.random.default_rng(seed)
    # stories and draws are drawn with replacement, independently: how often is each taken
    of_stories = generator.multinomial(stories, np.full(stories, 1 / stories), size=samples)
    of_draws = generator.multinomial(draws, np.full(draws, 1 / draws), size=samples)
    resampled = np.einsum("nd,ds,ns->n", of_draws, credit, of_stories, optimize=True)
    all_draws, all_draws_interval = None, None
    if not np.isnan(scores).any():
        limits = all_draws_credits(scores, true, distractors=K)
        all_draws = float(limits.mean())
        all_draws_interval = interval(of_stories @ limits / stories)
    return PromptRanking(
        accuracy=float(credit.mean()),
        interval=interval(resampled / (draws * stories)),
        per_draw=credit.mean(axis=1),
        all_draws=all_draws,
        all_draws_interval=all_draws_interval,
        chance=1 / (K + 1),
        stories=stories,
        ties=float(((credit > 0) & (credit < 1)).mean()),
    )
