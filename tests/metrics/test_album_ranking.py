"""Album ranking: ranks by hand, ties, and the limit of all draws by enumeration."""

from itertools import combinations

import numpy as np
import pytest

from fairseq_mm.metrics.album_ranking import candidate_ranks, rank_albums
from fairseq_mm.metrics.prompt_ranking import draw_distractors

SCORES = np.array([[-3.0, -4.0, -2.0, -9.0], [-5.0, -5.0004, -5.0, -8.0]])
TRUE = np.array([0, 1])


def test_ties_and_near_ties_count_against_the_model():
    distractors = np.array([[[1, 3], [3, 3]], [[1, 2], [0, 2]]])
    assert candidate_ranks(SCORES, TRUE, distractors).tolist() == [[1, 1], [2, 3]]
    # likelier by less than a tie
    scores = np.array([[-5.0, -5.0004, -7]])
    assert candidate_ranks(scores, TRUE[:1], np.array([[[1, 2]]])).tolist() == [[2]]


def test_figures_by_hand():
    distractors = np.array([[[1, 3], [3, 3]], [[1, 2], [0, 2]]])
    result = rank_albums(SCORES, TRUE, distractors, samples=50)
    assert result.first.value == 1 / 2
    assert result.first.chance == pytest.approx(1 / 3)
    assert result.mean_rank.value == (1 + 1 + 2 + 3) / 4
    assert result.mean_rank.chance == 2
    assert result.ties == 1 / 4
    assert result.stories == 2
    assert result.first.interval == (0.5, 0.5)  # both stories are first in one draw of two
    assert result.mean_rank.interval == (1.5, 2.0)


def test_all_draws_are_the_mean_of_every_possible_draw():
    scores = np.random.default_rng(4).integers(-6, 0, size=(5, 7)).astype(float)
    true = np.array([0, 6, 3, 3, 2])
    ranks = []
    for story, own in enumerate(true):
        others = [column for column in range(7) if column != own]
        ranks.append(
            [
                1 + sum(scores[story, column] >= scores[story, own] for column in drawn)
                for drawn in combinations(others, 3)
            ]
        )
    distractors = draw_distractors(true, 7, draws=3, distractors=3, seed=1)
    result = rank_albums(scores, true, distractors)
    assert result.first.all_draws == pytest.approx(np.mean(np.array(ranks) == 1))
    assert result.mean_rank.all_draws == pytest.approx(np.mean(ranks))
    assert result.first.interval[0] <= result.first.value <= result.first.interval[1]


def test_a_model_that_ignores_images_is_never_first():
    scores = -50 + np.random.default_rng(1).normal(size=(6, 12)) * 1e-5
    true = np.arange(6)
    result = rank_albums(scores, true, draw_distractors(true, 12, draws=4, distractors=9))
    assert result.first.value == 0
    assert result.mean_rank.value == 10
    assert result.ties == 1


def test_missing_scores_are_named():
    scores = SCORES.copy()
    scores[1, 2] = np.nan
    with pytest.raises(ValueError, match="is NaN for story 1 and album 2 instead"):
        candidate_ranks(scores, TRUE, np.array([[[1], [2]]]))
    result = rank_albums(scores, TRUE, np.array([[[1], [0]]]))
    assert result.first.all_draws is None
    with pytest.raises(ValueError, match="`distractors` must not be empty, but has shape"):
        rank_albums(scores, TRUE, np.zeros((0, 2, 1), dtype=int))
