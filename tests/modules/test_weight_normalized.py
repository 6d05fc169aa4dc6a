"""Weight-normalised matrices equal PyTorch's own, in value and in gradient."""

import warnings

import pytest
import torch
from numerics import assert_close
from torch import nn

from fairseq_mm.modules.linear import WeightNormalized

O, I = 5, 3  # noqa: E741


def torch_layer(matrices, number=None):
    """A linear layer under PyTorch's weight normalisation, with one of the matrices' parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # there is a newer one from PyTorch 2 on
        layer = nn.utils.weight_norm(nn.Linear(I, O), dim=0)
    with torch.no_grad():
        for name in ("weight_v", "weight_g", "bias"):
            value = getattr(matrices, name)
            getattr(layer, name).copy_(value if number is None else value[number])
    return layer


def randomized(*shape):
    torch.manual_seed(8)
    matrices = WeightNormalized(*shape)
    for parameter in matrices.parameters():
        nn.init.normal_(parameter)
    return matrices


def test_matrix_and_gradients_equal_those_of_torch():
    matrix, x = randomized(O, I), torch.randn(4, I)
    layer = torch_layer(matrix)
    expected = layer(x)
    out = x @ matrix.weight().t() + matrix.bias
    torch.testing.assert_close(out, expected)
    scale = torch.randn(4, O)
    (expected * scale).sum().backward()
    (out * scale).sum().backward()
    for name in ("weight_v", "weight_g", "bias"):
        assert_close(getattr(matrix, name).grad, getattr(layer, name).grad)


def test_several_matrices_are_normalised_each_for_itself():
    matrices, x = randomized(4, O, I), torch.randn(2, I)
    for number, weight in enumerate(matrices.weight()):
        expected = torch_layer(matrices, number)(x)
        torch.testing.assert_close(x @ weight.t() + matrices.bias[number], expected)


def test_folding_changes_no_value_and_no_state():
    matrix = randomized(O, I)
    before, keys = matrix.weight(), matrix.state_dict().keys()
    matrix.fold()
    assert torch.equal(matrix.weight(), before)
    assert matrix.weight() is matrix.weight()
    assert matrix.state_dict().keys() == keys
    matrix.to(torch.float64)
    assert matrix.weight().dtype == torch.float64
    with torch.no_grad():
        matrix.weight_g.mul_(3)
    matrix.fold()
    assert_close(matrix.weight(), before.double() * 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_half_precision_do_not_overflow(dtype):
    matrix = WeightNormalized(1, 4)
    with torch.no_grad():
        matrix.weight_v.fill_(300)  # of float16, the squares' sum is infinite
        matrix.weight_g.fill_(2)
    weight = matrix.to(dtype).weight()
    assert weight.dtype == dtype
    torch.testing.assert_close(weight, torch.ones(1, 4, dtype=dtype))
