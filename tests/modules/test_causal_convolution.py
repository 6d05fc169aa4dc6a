"""A causal convolution equals loops over times, at once and step by step."""

import pytest
import torch
from numerics import assert_close

from fairseq_mm.models._conv_trunk import CausalConvolution

B, I, O, T = 2, 3, 4, 7  # noqa: E741


@pytest.fixture(params=[1, 2, 4, 9])
def convolution(request):
    torch.manual_seed(2)
    module = CausalConvolution(I, O, request.param, dropout=0.2)
    torch.nn.init.normal_(module.bias)
    return module


def test_equals_loops_over_times(convolution):
    x = torch.randn(B, T, I)
    out = convolution(x)
    for row in range(B):
        for t in range(T):
            total = convolution.bias.clone()
            for place in range(convolution.width):
                time = t - convolution.width + 1 + place
                if time >= 0:
                    total += convolution.weight[:, :, place] @ x[row, time]
            expected = total[:O] * torch.sigmoid(total[O:])
            assert_close(out[row, t], expected)


@pytest.mark.parametrize("is_folded", [False, True])
def test_steps_equal_the_pass(convolution, is_folded):
    x = torch.randn(B, T, I)
    if is_folded:
        convolution.fold()
    window = None
    with torch.no_grad():
        whole = convolution(x)
        for t in range(T):
            step, window = convolution.step(x[:, t], window)
            assert_close(step, whole[:, t])
            assert window.shape == (B, (convolution.width - 1) * I)


def test_folded_weights_follow_the_module(convolution):
    convolution.fold()
    convolution.to(torch.float64)
    assert convolution.step_weight.dtype == torch.float64
    assert "step_weight" not in convolution.state_dict()
    step, _ = convolution.step(torch.randn(B, I, dtype=torch.float64), None)
    assert step.dtype == torch.float64
