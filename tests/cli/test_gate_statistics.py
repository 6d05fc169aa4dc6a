"""Statistics and bins of forget gates' scores, by hand."""

import numpy as np
import pytest

from fairseq_mm.cli.inspect_videos import MOST_BINS, bin_edges, gate_statistics


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
    assert bin_edges(np.array([0.4713])) == [0.471, 0.472]
    for seed in range(4):
        scores = np.random.default_rng(seed).normal(0.47, 10.0 ** -(seed + 1), size=211)
        edges = bin_edges(scores)
        assert MOST_BINS / 3 < len(edges) - 1 <= MOST_BINS
        assert edges[0] <= scores.min() < edges[1]
        assert edges[-2] <= scores.max() <= edges[-1]
