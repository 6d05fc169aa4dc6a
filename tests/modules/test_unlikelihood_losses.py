"""Losses of unlikelihood against loops over the equations of Welleck et al. 2020."""

import math

import pytest
import torch
from numerics import assert_close

from fairseq_mm.modules.unlikelihood import (
    repeated_ngrams,
    step_losses,
    step_losses_of_log_probs,
    unlikelihood,
)

PAD = 1


def texts():
    torch.manual_seed(1)
    # few types, so that tokens repeat
    target = torch.randint(2, 7, (3, 9))
    target[0, 5:] = PAD
    target[2, 8:] = PAD
    return target


def naive_losses(log_probs, target, negatives=None):
    """Equation 5 (token level) or 6 (sequence level), a step at a time."""
    rows = []
    for b, text in enumerate(target.tolist()):
        for t, own in enumerate(text):
            if own == PAD:
                continue
            if negatives is None:
                candidates = set(text[:t]) - {own}
            else:
                candidates = {own} if negatives[b, t] else set()
            lp = log_probs[b, t]
            penalty = -sum(math.log(1 - math.exp(lp[c])) for c in candidates)
            rows.append((-lp[own].item(), -lp.mean().item(), penalty))
    return [torch.tensor(column) for column in zip(*rows)]


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("chunk_bytes", [1, 100, 10**6])
@pytest.mark.parametrize("has_bias", [True, False])
def test_losses_equal_loops(level, chunk_bytes, has_bias):
    target = texts()
    features, weight = torch.randn(3, 9, 4), torch.randn(11, 4)
    bias = torch.randn(11) if has_bias else None
    negatives = repeated_ngrams(target, 1, PAD) if level == "sequence" else None
    log_probs = torch.nn.functional.linear(features, weight, bias).log_softmax(-1)
    expected = naive_losses(log_probs, target, negatives)
    options = {"padding_idx": PAD, "negatives": negatives}
    found = step_losses(features, weight, bias, target, **options, chunk_bytes=chunk_bytes)
    of_log_probs = step_losses_of_log_probs(log_probs, target, **options)
    for column, whole, right in zip(found, of_log_probs, expected):
        assert_close(column, right)
        assert_close(whole, right)
    assert expected[2].gt(0).sum() > 5


def test_gradients_equal_those_of_all_log_probabilities():
    target = texts()
    inputs = [torch.randn(3, 9, 4), torch.randn(11, 4), torch.randn(11)]
    gradients = []
    for is_chunked in (True, False):
        leaves = [x.clone().requires_grad_() for x in inputs]
        if is_chunked:
            losses = step_losses(*leaves, target, padding_idx=PAD, chunk_bytes=100)
        else:
            log_probs = torch.nn.functional.linear(*leaves).log_softmax(-1)
            losses = step_losses_of_log_probs(log_probs, target, padding_idx=PAD)
        (losses.nll.sum() + 0.3 * losses.smooth.sum() + losses.unlikelihood.sum()).backward()
        gradients.append([leaf.grad for leaf in leaves])
    for ours, right in zip(*gradients):
        assert_close(ours, right)


def test_padding_has_no_gradient():
    target = texts()
    features = torch.randn(3, 9, 4, requires_grad=True)
    losses = step_losses(features, torch.randn(11, 4), None, target, padding_idx=PAD, chunk_bytes=9)
    losses.unlikelihood.sum().backward()
    assert not features.grad[target.eq(PAD)].any()
    assert features.grad[target.ne(PAD)].any()


def test_a_certain_token_has_a_finite_loss_and_gradient():
    logits = torch.tensor([0.0, -torch.inf, -1e-9, -50.0], requires_grad=True)
    found = unlikelihood(logits)
    found.sum().backward()
    found = found.detach()
    assert found.isfinite().all()
    assert logits.grad.isfinite().all()
    assert found[3] == pytest.approx(math.exp(-50.0))
    assert found[0] == pytest.approx(-math.log(1e-6), abs=0.1)
    assert found[1] == 0


def test_small_and_large_probabilities_lose_no_digits():
    log_probs = [-1e-5, -1e-3, -0.6, -0.8, -5.0, -18.0]
    exact = [-math.log(-math.expm1(x)) if x > -1 else -math.log1p(-math.exp(x)) for x in log_probs]
    found = unlikelihood(torch.tensor(log_probs))
    assert found.tolist() == pytest.approx(exact, rel=1e-6)


def naive_repeated(text, n):
    marks = [False] * len(text)
    seen = set()
    for start in range(len(text) - n + 1):
        ngram = tuple(text[start : start + n])
        if PAD in ngram:
            continue
        if ngram in seen:
            marks[start : start + n] = [True] * n
        seen.add(ngram)
    return marks


@pytest.mark.parametrize("n", [1, 2, 3, 4, 10])
def test_repeated_ngrams_equal_loops(n):
    torch.manual_seed(2)
    tokens = torch.randint(2, 5, (6, 9))
    tokens[1, 3:] = PAD
    tokens[2, 7:] = PAD
    found = repeated_ngrams(tokens, n, PAD)
    assert found.tolist() == [naive_repeated(text, n) for text in tokens.tolist()]
    if n == 2:
        assert found.any()
        assert not found.all()


def test_a_text_without_tokens_has_no_losses():
    target = torch.full((2, 3), PAD)
    found = step_losses(
        torch.randn(2, 3, 4), torch.randn(5, 4), None, target, padding_idx=PAD, chunk_bytes=100
    )
    assert [len(column) for column in found] == [0, 0, 0]
