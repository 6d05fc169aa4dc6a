"""The best temperature against a search with the likelihood itself."""

import numpy as np
import pytest

from fairseq_mm.metrics.perplexity import GRID, best_temperature


def log_likelihood(logits, target, temperature):
    probabilities = np.exp(logits / temperature)
    drawn = probabilities[np.arange(len(target)), target] / probabilities.sum(1)
    return float(np.log(drawn).sum())


def sums_of(logits, target, temperatures):
    """Value and derivatives by differences: nothing of the formulas in use."""
    e = 1e-4
    columns = []
    for temperature in temperatures:
        b = 1 / temperature
        low, at, high = (log_likelihood(logits, target, 1 / x) for x in (b - e, b, b + e))
        columns.append((at, (high - low) / (2 * e), (high - 2 * at + low) / e**2))
    return np.array(columns).T


@pytest.mark.parametrize("true_temperature", [0.45, 0.93, 1.0, 1.71, 2.6])
def test_words_drawn_at_a_temperature_are_likeliest_near_it(true_temperature):
    generator = np.random.default_rng(6)
    logits = generator.normal(size=(400, 7)) * 2
    noise = generator.gumbel(size=logits.shape)
    target = (logits / true_temperature + noise).argmax(1)
    found = best_temperature(np.array(GRID), sums_of(logits, target, GRID))
    tried = np.linspace(0.34, 2.99, 2651)
    values = [log_likelihood(logits, target, t) for t in tried]
    assert found.is_inside
    assert found.temperature == pytest.approx(tried[int(np.argmax(values))], abs=2e-3)
    assert found.log_likelihood == pytest.approx(max(values), abs=1e-3)
    # 400 words tell it to a tenth or two; its inverse, or no temperature, is further away
    assert abs(np.log(found.temperature / true_temperature)) < 0.3


@pytest.mark.parametrize(("target", "end"), [("argmax", 0), ("argmin", -1)])
def test_a_best_temperature_beyond_the_grid_is_said_to_be_at_its_end(target, end):
    logits = np.random.default_rng(2).normal(size=(5, 3))
    words = getattr(logits, target)(1)
    found = best_temperature(np.array(GRID), sums_of(logits, words, GRID))
    assert not found.is_inside
    assert found.temperature == pytest.approx(GRID[end])
