"""Bootstrap: seeds, intervals of a mean, p-values."""

import numpy as np
import pytest

from fairseq_mm.metrics.bootstrap import interval, p_value, resampled


def mean(total):
    return total[0] / total[1]


@pytest.fixture
def sums():
    values = np.random.default_rng(0).normal(5.0, 2.0, size=400)
    return np.stack([values, np.ones(400)], axis=1)


def test_same_seed_draws_the_same_items(sums):
    first = resampled(sums, mean, samples=9, seed=3)
    np.testing.assert_array_equal(first, resampled(sums, mean, samples=9, seed=3))
    assert not np.array_equal(first, resampled(sums, mean, samples=9, seed=4))
    # paired: a system that is better by 1 everywhere is better by 1 in every sample
    better = sums + np.array([1.0, 0.0])
    np.testing.assert_allclose(resampled(better, mean, samples=9, seed=3) - first, 1.0)


def test_interval_of_a_mean_is_about_two_standard_errors_wide(sums):
    low, high = interval(resampled(sums, mean, samples=1000, seed=1))
    error = sums[:, 0].std() / 20
    assert low == pytest.approx(sums[:, 0].mean() - 1.96 * error, abs=0.3 * error)
    assert high == pytest.approx(sums[:, 0].mean() + 1.96 * error, abs=0.3 * error)


def test_p_value_by_hand():
    assert p_value(np.array([1.0] * 98 + [-1.0])) == pytest.approx(2 * 2 / 100)
    assert p_value(-np.array([1.0] * 99)) == pytest.approx(2 / 100)
    assert p_value(np.zeros(9)) == 1.0
