"""Dropout masks drawn from 16 bits per value have PyTorch's distribution, types and seeds."""

import pytest
import torch
import torch.nn.functional as F

from fairseq_mm.compat import dropout_masks
from fairseq_mm.compat.dropout_masks import draw_in_words  # tests/conftest.py replaces it

if not dropout_masks.can_replace():
    pytest.skip("this PyTorch cannot replace an operator", allow_module_level=True)


@pytest.fixture
def replaced(monkeypatch):
    monkeypatch.setattr(dropout_masks, "_is_intel", lambda: False)
    assert draw_in_words()
    assert draw_in_words()  # once more changes nothing
    yield
    dropout_masks.draw_as_pytorch()


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9])
def test_as_many_values_are_dropped_as_the_rate_says(replaced, rate):
    torch.manual_seed(1)
    x = torch.randn(400, 1000)
    y = F.dropout(x, rate)
    kept = y != 0
    deviation = (rate * (1 - rate) / x.numel()) ** 0.5
    assert float((~kept).float().mean()) == pytest.approx(rate, abs=5 * deviation + 1 / 65536)
    torch.testing.assert_close(y[kept], x[kept] / (1 - rate))
    # neighbours are independent, also the four that come from one random number
    for distance in (1, 2, 3, 4):
        dropped = (~kept).flatten().double()
        both = float((dropped[distance:] * dropped[:-distance]).mean())
        assert both == pytest.approx(rate**2, abs=6 * deviation)


def test_a_seed_or_generator_decides_the_mask(replaced):
    x = torch.ones(1001)
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(F.dropout(x, 0.5))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    given = [x.bernoulli_(0.5, generator=torch.Generator().manual_seed(3)).clone() for _ in "ab"]
    assert torch.equal(*given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.bool])
def test_every_shape_stride_and_type_is_filled(replaced, dtype):
    for x in (
        torch.empty(0, dtype=dtype),
        torch.empty((), dtype=dtype),
        torch.empty(3, 5, dtype=dtype),
        torch.empty(3, 8, dtype=dtype)[:, ::2],
        torch.empty(3, 5, dtype=dtype).t(),
    ):
        for p in (0.0, 0.4, 1.0):
            x.bernoulli_(p)
            assert set(x.flatten().tolist()) <= ({p} if p in (0, 1) else {0, 1})
    big = torch.empty(100, 200, dtype=dtype)[:, ::2]
    assert float(big.bernoulli_(0.4).float().mean()) == pytest.approx(0.4, abs=0.03)
    with pytest.raises(RuntimeError, match=r"p to be in \[0, 1\], but got p=1.5"):
        torch.empty(3, dtype=dtype).bernoulli_(1.5)


def test_pytorchs_operator_comes_back(monkeypatch):
    monkeypatch.setattr(dropout_masks, "_is_intel", lambda: False)
    masks = []
    for replaces in (False, True, False):
        if replaces:
            assert draw_in_words()
        torch.manual_seed(1)
        masks.append(F.dropout(torch.ones(1000), 0.5))
        dropout_masks.draw_as_pytorch()
    assert torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[0], masks[1])


def test_gradients_flow_through_the_values_that_are_kept(replaced):
    x = torch.ones(1000, requires_grad=True)
    y = F.dropout(x, 0.25)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_intels_own_operator_stays(monkeypatch):
    monkeypatch.setattr(dropout_masks, "_is_intel", lambda: True)
    assert not draw_in_words()
