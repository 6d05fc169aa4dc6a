"""Statistics and histograms of forget gates' scores, by hand and by loops."""

import numpy as np
import pytest

from fairseq_mm.metrics.gate_scores import (
    MOST_BINS,
    bin_edges,
    count_in_bins,
    descending_ranks,
    gate_statistics,
)


def test_statistics_are_those_of_a_pencil():
    # mean 2.5 / 5; squares of differences .16 .01 0 .01 .16, their mean .068
    found = gate_statistics(np.array([0.1, 0.4, 0.5, 0.6, 0.9]))
    expected = {"count": 5, "mean": 0.5, "std": 0.068**0.5, "min": 0.1, "q25": 0.4}
    assert found == pytest.approx({**expected, "median": 0.5, "q75": 0.6, "max": 0.9})
    assert list(found) == ["count", "mean", "std", "min", "q25", "median", "q75", "max"]


def test_bins_are_the_narrowest_round_ones_that_are_not_too_many():
    assert bin_edges(np.array([0.4702, 0.4798]), most=5) == [0.47, 0.472, 0.474, 0.476, 0.478, 0.48]
    assert bin_edges(np.array([0.4702, 0.4798]), most=4) == [0.47, 0.475, 0.48]
    assert bin_edges(np.array([0.47, 0.48]), most=10)[:2] == [0.47, 0.471]
    assert len(bin_edges(np.array([0.47, 0.48]), most=10)) == 11


def test_scores_that_are_all_equal_have_one_bin():
    assert bin_edges(np.array([0.4713])) == [0.471, 0.472]
    assert bin_edges(np.array([0.5, 0.5])) == [0.5, 0.501]
    assert count_in_bins(np.array([0.5, 0.5]), [0.5, 0.501]) == [2]


@pytest.mark.parametrize("seed", range(4))
def test_every_score_is_counted_in_its_bin(seed):
    generator = np.random.default_rng(seed)
    scores = generator.normal(0.47, 10.0 ** -(seed + 1), size=211)
    scores[:3] = scores.round(3)[:3]
    edges = bin_edges(scores)
    found = count_in_bins(scores, edges)
    assert sum(found) == 211
    assert len(found) <= MOST_BINS
    assert len(found) > MOST_BINS / 3
    assert found[0]
    assert found[-1]
    for count, low, high in zip(found[:-1], edges, edges[1:]):
        assert count == sum(low <= score < high for score in scores)


def test_the_highest_score_is_first_and_equal_ones_share_a_place():
    assert descending_ranks(np.array([0.3, 0.9, 0.5, 0.9, 0.5, 0.1])) == [5, 1, 3, 1, 3, 6]
