"""The norm equals its formula, and numbers beyond float16 are normalised all the same."""

import math

import pytest
import torch
from numerics import assert_close

from fairseq_mm.modules.t5_layers import RMSNorm


class OnGpu(torch.Tensor):
    """Tensor on the CPU that is treated as one on a GPU."""

    is_cuda = True


@pytest.fixture(params=[torch.Tensor, OnGpu])
def kind(request):
    return request.param


def test_norm_equals_loops(kind):
    torch.manual_seed(0)
    norm = RMSNorm(5, epsilon=1e-2)
    torch.nn.init.normal_(norm.weight)
    weight = norm.weight.tolist()
    x = torch.randn(2, 3, 5)
    out = norm(x.as_subclass(kind)).detach()
    for b in range(2):
        for t in range(3):
            root = math.sqrt(sum(float(v) ** 2 for v in x[b, t]) / 5 + 1e-2)
            for d in range(5):
                expected = weight[d] * float(x[b, t, d]) / root
                assert_close(float(out[b, t, d]), expected)


def test_norm_of_large_numbers_is_finite_in_half_precision(kind):
    norm = RMSNorm(4).half()
    out = norm(torch.tensor([3e5, -3e5, 3e5, -3e5]).as_subclass(kind))
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), torch.tensor([1.0, -1, 1, -1]))


def test_norm_in_bfloat16_on_a_gpu_equals_norm_in_float32():
    torch.manual_seed(1)
    norm = RMSNorm(64)
    torch.nn.init.normal_(norm.weight)
    norm = norm.bfloat16()
    x = (1000 * torch.randn(3, 64)).bfloat16()
    out = norm(x.as_subclass(OnGpu))
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, norm.float()(x.as_subclass(OnGpu)).bfloat16())
