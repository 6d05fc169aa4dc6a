"""Ranks against a naive sort, ties, any number of true candidates, and the recall curve."""

import itertools

import numpy as np
import pytest

from fairseq_mm.metrics.ranks import (
    TrueRanks,
    chance_summary,
    curve_percentages,
    median_rank,
    recall_curve,
    summarize_ranks,
    true_ranks,
)


def ranks_of(scores, query_groups, candidate_groups, block=256):
    scores = np.asarray(scores, dtype=np.float64)
    return true_ranks(lambda s, e: scores[s:e], query_groups, candidate_groups, block=block)


def naive_ranks(scores, query_groups, candidate_groups):
    """All places of true candidates in the list sorted by score, false ones first in a tie."""
    places = []
    for row, group in zip(scores, query_groups):
        entries = [
            (-score, other == group)
            for score, other in zip(row, candidate_groups)
            if score != -np.inf
        ]
        listed = sorted(entries)  # False sorts before True
        places.append([i + 1 for i, (_, is_true) in enumerate(listed) if is_true])
    return places


@pytest.mark.parametrize("block", [1, 4, 100])
@pytest.mark.parametrize("levels", [3, 1000])
def test_ranks_equal_those_of_a_sorted_list_with_false_candidates_first(block, levels):
    generator = np.random.default_rng(5)
    query_groups = [3, 0, 1, 1, 2, 0, 3]
    candidate_groups = [0, 1, 3, 1, 2, 9, 0, 1, 3, 9, 9]  # 2, 3, 1 and 2 true ones; 3 distractors
    scores = generator.integers(0, levels, (7, 11)).astype(float)
    scores[0, 0] = scores[3, 5] = -np.inf
    ranks = ranks_of(scores, query_groups, candidate_groups, block)
    expected = naive_ranks(scores, query_groups, candidate_groups)
    assert ranks.query.tolist() == [q for q, places in enumerate(expected) for _ in places]
    assert ranks.rank.tolist() == [place for places in expected for place in places]
    assert ranks.first.tolist() == [places[0] for places in expected]
    assert ranks.num_candidates.tolist() == [10, 11, 11, 10, 11, 11, 11]


def test_summary_by_hand():
    # first ranks 1, 6, 11, 2: R@1 1/4, R@5 2/4, R@10 3/4, median (2 + 6) / 2 = 4, mean 20 / 4
    ranks = TrueRanks(np.arange(4), np.array([1, 6, 11, 2]), np.full(4, 12))
    summary = summarize_ranks(ranks)
    assert summary.recall_at == {1: 25.0, 5: 50.0, 10: 75.0}
    assert (summary.median_rank, summary.mean_rank) == (4, 5.0)
    assert (summary.queries, summary.candidates) == (4, 12.0)


def test_a_median_between_two_ranks_is_rounded_down():
    assert median_rank(np.array([1, 2])) == 1  # floor(median of 0, 1) + 1
    assert median_rank(np.array([3, 4, 8])) == 4


def test_curve_by_hand():
    # query 0: true at 1 and 4 of 4 (25 %, 100 %); query 1: true at 2 of 10 (20 %)
    ranks = TrueRanks(np.array([0, 0, 1]), np.array([1, 4, 2]), np.array([4, 10]))
    curve = recall_curve(ranks, np.array([0, 19.9, 20, 25, 99.9, 100]))
    np.testing.assert_allclose(curve, [0, 0, 50, 75, 75, 100])


def test_curve_takes_a_candidate_whose_place_is_exactly_the_percentage():
    for candidates in (100, 1000, 3000):
        ranks = TrueRanks(
            np.arange(candidates), np.arange(candidates) + 1, np.full(candidates, candidates)
        )
        exact = [p for p in curve_percentages() if p * candidates % 100 == 0]
        assert len(exact) >= 92
        np.testing.assert_allclose(recall_curve(ranks, np.array(exact)), exact)


def test_a_query_without_a_true_candidate_is_refused():
    with pytest.raises(ValueError, match="must have a true candidate"):
        ranks_of(np.zeros((2, 2)), [0, 5], [0, 1])
    with pytest.raises(ValueError, match="there must be a query"):
        ranks_of(np.zeros((0, 2)), [], [0, 1])


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_scores_that_would_hide_a_true_candidate_are_refused(bad):
    with pytest.raises(ValueError, match="scores of queries 0 to 1 must be numbers"):
        ranks_of([[bad, 1.0]], [0], [0, 1])


def test_chance_equals_the_mean_over_every_order(monkeypatch):
    """Two queries: 2 true ones of 5 candidates, 1 of 3; all orders are counted."""
    monkeypatch.setattr("fairseq_mm.metrics.ranks.RECALL_AT", (1, 2, 4, 9))
    first = [
        [min(places) for places in itertools.combinations(range(1, candidates + 1), true)]
        for true, candidates in ((2, 5), (1, 3))
    ]
    chance = chance_summary(np.array([2, 1]), np.array([5, 3]))
    assert list(chance.recall_at) == [1, 2, 4, 9]
    for k, recall in chance.recall_at.items():
        expected = np.mean([np.mean(np.array(ranks) <= k) for ranks in first])
        assert recall == pytest.approx(100 * expected)
    assert chance.mean_rank == pytest.approx(np.mean([np.mean(ranks) for ranks in first]))
    assert (chance.queries, chance.candidates) == (2, 4)
    assert chance.median_rank == 2  # rank 1: (2/5 + 1/3) / 2 < .5


def test_chance_is_the_papers_random_row():
    """Mao et al. 2015, tables 2 and 3: 1,000 images with five sentences each; .1, .5, 1.0, 500 of
    images for a sentence."""
    images = chance_summary(np.ones(5000, dtype=int), np.full(5000, 1000))
    assert images.recall_at == pytest.approx({1: 0.1, 5: 0.5, 10: 1.0})
    assert images.median_rank == 500
    sentences = chance_summary(np.full(1000, 5), np.full(1000, 5000))
    assert sentences.recall_at[10] == pytest.approx(1.0, abs=0.01)
    assert sentences.median_rank == 647  # the paper's 631 is of one random order
