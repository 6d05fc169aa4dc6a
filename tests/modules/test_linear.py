"""All branches of the products give what ``F.linear`` gives, and its gradients."""

import pytest
import torch
import torch.nn.functional as F
from numerics import assert_close

from fairseq_mm.modules import linear as linear_module
from fairseq_mm.modules.linear import grouped_linear, linear

I, O, G = 6, 5, 3  # noqa: E741
MANY = 1 + linear_module._MANY_NUMBERS // I


@pytest.fixture(autouse=True)
def small_products_count_as_large(monkeypatch):
    monkeypatch.setattr(linear_module, "_MANY_PRODUCTS", 0)


def random_leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def assert_equal_with_gradients(found, expected, leaves):
    assert_close(found, expected)
    if not found.requires_grad:
        return
    scale = torch.randn_like(found)
    ours = torch.autograd.grad((found * scale).sum(), leaves)
    theirs = torch.autograd.grad((expected * scale).sum(), leaves)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    "shape", [(I,), (1, I), (2, I), (15, I), (16, I), (40, I), (1, 1, I), (2, 7, I), (MANY, I)]
)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_gradients", [False, True])
def test_linear_maps_are_linear(shape, has_bias, has_gradients):
    x, weight = random_leaf(*shape), random_leaf(O, I)
    bias = random_leaf(O) if has_bias else None
    with torch.set_grad_enabled(has_gradients):
        found, expected = linear(x, weight, bias), F.linear(x, weight, bias)
    assert found.is_contiguous()
    leaves = [x, weight] + ([bias] if has_bias else [])
    assert_equal_with_gradients(found, expected, leaves)


@pytest.mark.parametrize("shape", [(2, 7, I), (3, MANY // 3 + 1, I)])
def test_rows_need_not_be_contiguous(shape):
    B, T, _ = shape
    x = torch.randn(B, I, T).transpose(1, 2)
    weight, bias = torch.randn(O, I), torch.randn(O)
    for has_gradients in (False, True):
        with torch.set_grad_enabled(has_gradients):
            found = linear(x, weight, bias)
        assert_close(found, F.linear(x, weight, bias))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [3, MANY])
def test_other_precisions_are_kept(dtype, rows):
    x, weight, bias = (torch.randn(*s, dtype=dtype) for s in ((rows, I), (O, I), (O,)))
    with torch.no_grad():
        found = linear(x, weight, bias)
    assert found.dtype == dtype
    torch.testing.assert_close(found, F.linear(x, weight, bias))


def test_groups_have_their_own_weights():
    x, weight, bias = random_leaf(G, 4, I), random_leaf(G, O, I), random_leaf(G, O)
    expected = torch.stack([F.linear(x[g], weight[g], bias[g]) for g in range(G)])
    assert_equal_with_gradients(grouped_linear(x, weight, bias), expected, [x, weight, bias])
