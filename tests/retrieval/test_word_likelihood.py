"""Likelihood of words from hidden states, against softmax over the whole vocabulary."""

from argparse import Namespace

import pytest
import torch
from numerics import assert_close
from torch import nn

from fairseq_mm.retrieval import word_likelihood
from fairseq_mm.retrieval.word_likelihood import (
    Tempered,
    mixture,
    tempered_log_probs,
    top_candidates,
    word_log_probs,
)

N, E, V = 11, 5, 203


@pytest.fixture
def decoder():
    torch.manual_seed(5)
    linear = nn.Linear(E, V)
    with torch.no_grad():
        linear.weight.mul_(6)
    return Namespace(output_proj=linear, output_layer=linear)


@pytest.fixture
def words():
    torch.manual_seed(8)
    return torch.randn(N, E), torch.randint(0, V, (N,))


@torch.no_grad()
@pytest.mark.parametrize("chunk_bytes", [1, 3000, 1 << 20])
def test_words_have_the_probability_of_the_softmax(decoder, words, chunk_bytes, monkeypatch):
    monkeypatch.setattr(word_likelihood, "_PIECE_BYTES", 256)  # several pieces of columns
    features, target = words
    found = word_log_probs(decoder, features, target, chunk_bytes=chunk_bytes)
    expected = decoder.output_layer(features).log_softmax(1).gather(1, target.unsqueeze(1))
    assert_close(found, expected.squeeze(1))


@torch.no_grad()
def test_a_words_own_logit_is_not_rounded_under_autocast(decoder, words):
    features, target = words
    decoder.output_proj.weight.div_(2)  # a flat softmax, whose sum averages the rounding out
    exact = word_log_probs(decoder, features, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = word_log_probs(decoder, features, target)
        decoder.output_proj = None
        all_rounded = word_log_probs(decoder, features, target)
    assert (rounded - exact).abs().max() < (all_rounded - exact).abs().max() / 2


def test_temperatures_give_value_slope_and_curvature(words):
    target = words[1]
    torch.manual_seed(1)
    logits = torch.randn(N, V, dtype=torch.float64) * 3
    inverse = torch.tensor([0.5, 1.0, 1.9], dtype=torch.float64)
    found = tempered_log_probs(logits.float(), target, inverse)
    for g, b in enumerate(inverse):
        b = b.clone().requires_grad_()
        for n in range(N):
            value = (logits[n] * b).log_softmax(0)[target[n]]
            (slope,) = torch.autograd.grad(value, b, create_graph=True)
            (curvature,) = torch.autograd.grad(slope, b)
            expected = torch.stack([value, slope, curvature]).detach()
            actual = torch.stack([part[n, g] for part in found])
            assert_close(actual, expected)


def test_a_mixture_averages_probabilities_and_has_its_own_derivatives():
    torch.manual_seed(3)
    b = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    logits = [torch.randn(6, dtype=torch.float64) * 2 for _ in range(3)]
    probability = sum((x * b).softmax(0)[2] for x in logits) / 3
    value = probability.log()
    (slope,) = torch.autograd.grad(value, b, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, b)
    target, inverse = torch.tensor([2]), torch.tensor([0.8], dtype=torch.float64)
    found = mixture([tempered_log_probs(x.unsqueeze(0), target, inverse) for x in logits])
    expected = Tempered(*(x.detach().view(1, 1) for x in (value, slope, curvature)))
    for actual, wanted in zip(found, expected):
        assert_close(actual, wanted)


def test_candidates_are_those_of_the_words_among_the_likeliest():
    logits = torch.tensor([[9.0, 1.0, 4.0, 3.0], [9.0, 5.0, 2.0, 1.0], [0.0, 2.0, 1.0, 3.0]])
    # word 0 is excluded, so a target of it is covered by no k
    candidates, place = top_candidates(logits, torch.tensor([3, 3, 0]), 2, (0,))
    assert candidates.tolist() == [[4.0, 3.0]]
    assert place.tolist() == [1]
