"""Rankings by prompt and by album: what is drawn, what a draw gives, and the limit of all draws by
enumeration."""

import numpy as np
import pytest

from fairseq_mm.metrics.condition_ranking import (
    candidate_ranks,
    draw_credits,
    draw_distractors,
    needed_pairs,
    rank_albums,
    rank_prompts,
)


def naive_credit(own, others):
    """A guess among the likeliest."""
    if max(others) > own:
        return 0.0
    return 1 / (1 + sum(other == own for other in others))


@pytest.fixture
def scores():
    """Few different values, so that there are ties. [stories, prompts]"""
    return np.random.default_rng(2).integers(-5, 0, size=(6, 8)).astype(float)


@pytest.fixture
def true():
    return np.array([0, 3, 3, 7, 5, 1])


def test_distractors_are_different_and_never_the_true_prompt(true):
    drawn = draw_distractors(true, 8, draws=40, distractors=5, seed=3)
    assert drawn.shape == (40, 6, 5)
    assert (drawn != true[:, None]).all()
    assert all(len(set(row)) == 5 for row in drawn.reshape(-1, 5).tolist())
    for story in range(6):
        assert set(drawn[:, story].ravel()) == set(range(8)) - {true[story]}


def test_all_other_prompts_are_equally_likely():
    drawn = draw_distractors(np.full(4000, 2), 6, draws=2, distractors=2, seed=1)
    shares = np.bincount(drawn.ravel(), minlength=6) / drawn.size
    # 16,000 draws of probability 0.2: standard error 0.003
    assert shares == pytest.approx([0.2, 0.2, 0, 0.2, 0.2, 0.2], abs=0.015)


def test_a_draw_depends_on_its_number_and_the_seed_alone(true):
    few, many = (draw_distractors(true, 30, draws=draws, seed=4) for draws in (3, 7))
    assert (few == many[:3]).all()
    assert (few != draw_distractors(true, 30, draws=3, seed=5)).any()
    assert (many[0] != many[1]).any()


def test_needed_pairs_are_exactly_those_compared(scores, true):
    drawn = draw_distractors(true, 8, draws=2, distractors=3, seed=6)
    pairs = needed_pairs(true, drawn)
    expected = {(s, int(true[s])) for s in range(6)}
    expected |= {(s, int(column)) for draw in drawn for s in range(6) for column in draw[s]}
    assert [tuple(pair) for pair in pairs.tolist()] == sorted(expected)
    sparse = np.full((6, 8), np.nan)
    sparse[tuple(pairs.T)] = scores[tuple(pairs.T)]
    assert (draw_credits(sparse, true, drawn) == draw_credits(scores, true, drawn)).all()
    story, column = pairs[5]
    sparse[story, column] = np.nan
    with pytest.raises(ValueError, match="but is NaN for one"):
        draw_credits(sparse, true, drawn)
    sparse[2, true[2]] = np.nan
    with pytest.raises(ValueError, match="but is NaN for one"):
        draw_credits(sparse, true, drawn)


def test_credits_are_those_of_a_guess_among_the_likeliest(scores, true):
    drawn = draw_distractors(true, 8, draws=5, distractors=4, seed=7)
    credit = draw_credits(scores, true, drawn)
    for draw in range(5):
        for story in range(6):
            others = scores[story, drawn[draw, story]]
            assert credit[draw, story] == naive_credit(scores[story, true[story]], others)


def test_a_system_that_ignores_prompts_is_at_chance():
    S, P = 700, 40
    scores = np.random.default_rng(1).normal(size=(S, P))
    true = np.arange(S) % P
    result = rank_prompts(scores, true, draw_distractors(true, P, draws=6))
    assert result.accuracy.chance == 0.1
    assert result.accuracy.interval[0] < 0.1 < result.accuracy.interval[1]
    assert len(result.per_draw) == 6
    assert result.accuracy.value == pytest.approx(np.mean(result.per_draw))
    assert (result.stories, result.ties) == (S, 0)
    constant = rank_prompts(np.zeros((S, P)), true, draw_distractors(true, P, draws=2))
    assert constant.accuracy.value == pytest.approx(0.1)
    assert constant.ties == 1


def test_the_interval_is_that_of_resampled_stories_and_draws(scores, true):
    drawn = draw_distractors(true, 8, draws=9, distractors=4, seed=3)
    result = rank_prompts(scores, true, drawn, samples=4000)
    credit = draw_credits(scores, true, drawn)
    generator = np.random.default_rng(9)
    means = [
        credit[np.ix_(generator.integers(9, size=9), generator.integers(6, size=6))].mean()
        for _ in range(4000)
    ]
    assert result.accuracy.interval == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.02)


# Albums

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
