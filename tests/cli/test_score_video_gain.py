"""The video's share of a gain: the paper's 83.6 %, signs, resampling."""

import numpy as np
import pytest

from fairseq_mm.cli.score_gain import share_interval, video_gain

VG_BART, BART, MFFG = (68.0, 51.4, 63.3), (64.0, 46.4, 58.9), (62.3, 46.1, 58.2)


def test_the_papers_share():
    found = video_gain(VG_BART, BART, MFFG)
    assert round(100 * found.share, 1) == 83.6
    assert found.gains == pytest.approx((5.7, 5.3, 5.1))
    assert found.video_gains == pytest.approx((4.0, 5.0, 4.4))
    assert found.shares == pytest.approx((4.0 / 5.7, 5.0 / 5.3, 4.4 / 5.1))


def test_no_gain_in_one_measure_has_no_share():
    found = video_gain((0.3, 0.5), (0.2, 0.4), (0.1, 0.5))
    assert found.shares == [pytest.approx(0.5), None]
    assert found.share is None


def test_interval_holds_the_share_and_equals_resampling_by_hand():
    generator = np.random.default_rng(4)
    baseline = generator.uniform(0, 0.5, (37, 2))
    text_only = baseline + generator.uniform(0, 0.2, (37, 2))
    system = text_only + generator.uniform(0, 0.2, (37, 2))
    draws = np.random.default_rng(5)
    shares = []
    for _ in range(50):
        drawn = draws.integers(37, size=37)
        means = [figures[drawn].mean(0) for figures in (system, text_only, baseline)]
        shares.append(np.mean((means[0] - means[1]) / (means[0] - means[2])))
    low, high = share_interval(system, text_only, baseline, samples=50, seed=5)
    assert (low, high) == pytest.approx(tuple(np.quantile(shares, [0.025, 0.975])), abs=1e-12)
    exact = share_interval(system, text_only, baseline.mean(0), samples=50, seed=5)
    assert exact[0] < low
    assert exact[1] > high
    assert share_interval(system, text_only, baseline + 0.25, samples=50, seed=5) is None
