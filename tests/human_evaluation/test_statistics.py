"""Figures of a study: by hand, and against the formulas written out."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from annotation.statistics import bootstrap_share, fleiss_kappa, sign_test


def test_a_share_is_over_answers_and_its_interval_over_questions():
    hits, totals = [3, 0, 2, 5, 1, 0, 4], [5, 5, 2, 5, 1, 4, 5]
    share = bootstrap_share(hits, totals, samples=3000, seed=2)
    assert share.value == 15 / 27
    generator = np.random.default_rng(8)
    figures = []
    for _ in range(3000):
        drawn = generator.integers(7, size=7)
        figures.append(sum(hits[i] for i in drawn) / sum(totals[i] for i in drawn))
    assert share.interval == pytest.approx(np.quantile(figures, [0.025, 0.975]), abs=0.03)


def test_kappa_is_agreement_of_pairs_beyond_chance():
    counts = np.array([[3, 0, 2], [1, 4, 0], [0, 2, 0], [2, 1, 4]])
    shares = counts.sum(axis=0) / counts.sum()
    agreements = []
    for row in counts:
        answers = np.repeat(range(3), row)
        agreements.append(np.mean([a == b for a, b in combinations(answers, 2)]))
    expected = (np.mean(agreements) - (shares**2).sum()) / (1 - (shares**2).sum())
    assert fleiss_kappa(counts) == pytest.approx(expected)


def test_kappa_by_hand():
    # Pairs of 4 answers that agree: 6 of 6, 3 of 6, 2 of 6; mean 11/18.
    # Shares: 7/12 and 5/12, by chance 74/144. (11/18 - 37/72) / (1 - 37/72) = 7/35
    assert fleiss_kappa(np.array([[4, 0], [1, 3], [2, 2]])) == pytest.approx(0.2)


def test_kappa_is_one_for_agreement_and_none_without_a_comparison():
    assert fleiss_kappa(np.array([[3, 0], [0, 4], [1, 0]])) == pytest.approx(1)
    assert fleiss_kappa(np.array([[1, 0], [0, 1]])) is None
    assert fleiss_kappa(np.array([[3, 0], [2, 0]])) is None


def test_sign_test_counts_majorities():
    # majorities: first 4, second 1, even 1. P(4 or more of 5) = (5 + 1) / 32, twice that
    test = sign_test([3, 4, 5, 2, 1, 2], [5, 5, 5, 3, 5, 4])
    assert test == (4, 1, 1, pytest.approx(2 * 6 / 32))
    assert sign_test([1, 1], [2, 2]) == (0, 0, 2, 1.0)
    assert sign_test([0] * 9, [1] * 9).p == pytest.approx(2 / 2**9)
    assert sign_test([2, 0], [2, 2]).p == 1.0
    large = sign_test([5] * 268 + [0] * 132, [5] * 400)
    assert large.p == pytest.approx(2 * sum(comb(400, k) for k in range(268, 401)) / 2**400)
