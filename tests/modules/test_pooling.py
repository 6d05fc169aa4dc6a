"""Pooling equals its definitions, written as loops, whatever the padding holds."""

import math

import pytest
import torch
from numerics import assert_close
from torch import nn

from fairseq_mm.models.vse import GeneralizedPooling, pool_max, pool_mean

D = 6
LENGTHS = (5, 1, 3, 0, 5)


@pytest.fixture
def rows():
    torch.manual_seed(5)
    x = torch.randn(len(LENGTHS), 5, D)
    for row, length in zip(x, LENGTHS):
        row[length:] = 1e4
    return x, torch.tensor(LENGTHS)


@pytest.mark.parametrize(
    ("pool", "of_values"), [(pool_mean, lambda x: sum(x) / len(x)), (pool_max, max)]
)
def test_mean_and_maximum_are_of_the_real_vectors(rows, pool, of_values):
    x, lengths = rows
    expected = torch.zeros(len(LENGTHS), D)
    for b, length in enumerate(LENGTHS):
        for d in range(D):
            if length:
                expected[b, d] = of_values([float(x[b, n, d]) for n in range(length)])
    assert_close(pool(x, lengths), expected)


def weights_by_loops(pooling, count):
    """Softmax over the GRU's states, of each number of vectors by itself."""
    encodings = torch.zeros(count, 32)
    for k in range(count):
        for i in range(16):
            angle = (k + 1) / 10000 ** (2 * i / 32)
            encodings[k, 2 * i], encodings[k, 2 * i + 1] = math.sin(angle), math.cos(angle)
    states, _ = pooling.gru(encodings[None])
    scores = [math.exp(float(state @ pooling.score_proj.weight[0])) for state in states[0]]
    return [score / sum(scores) for score in scores]


def test_generalized_pooling_equals_the_equation_written_as_loops(rows):
    x, lengths = rows
    pooling = GeneralizedPooling()
    with torch.no_grad():
        pooling.score_proj.weight.mul_(20)  # weights that differ
    expected = torch.zeros(len(LENGTHS), D)
    for b, length in enumerate(LENGTHS):
        theta = weights_by_loops(pooling, length) if length else []
        for d in range(D):
            values = sorted((float(x[b, n, d]) for n in range(length)), reverse=True)
            expected[b, d] = sum(weight * value for weight, value in zip(theta, values))
    assert_close(pooling(x, lengths), expected)


def test_mean_and_maximum_are_special_cases(rows):
    x, lengths = rows
    pooling = GeneralizedPooling()
    nn.init.zeros_(pooling.score_proj.weight)
    assert_close(pooling(x, lengths), pool_mean(x, lengths))
    pooling.get_weights = lambda shortest, longest: torch.eye(longest)[:1].expand(longest, -1)
    assert_close(pooling(x, lengths), pool_max(x, lengths))
