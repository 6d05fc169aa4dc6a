"""T5's two feed-forward layers equal their formulas; float16 keeps outputs beyond its range."""

import math

import pytest
import torch
from numerics import assert_close

from fairseq_mm.modules.t5_layers import T5FeedForward

D, F = 3, 5


def rows(layer, x):
    return [sum(float(w) * float(v) for w, v in zip(row, x)) for row in layer.weight]


def gelu(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("gated", [False, True])
def test_layer_equals_loops(gated):
    torch.manual_seed(0)
    layer = T5FeedForward(D, F, 0.0, gated=gated)
    x = torch.randn(2, D)
    out = layer(x)
    for i in range(2):
        inner = rows(layer.inner_proj, x[i])
        if gated:
            gates = rows(layer.gate_proj, x[i])
            inner = [gelu(gate) * value for gate, value in zip(gates, inner)]
        else:
            inner = [max(0.0, value) for value in inner]
        for d in range(D):
            expected = sum(float(layer.output_proj.weight[d, f]) * inner[f] for f in range(F))
            assert_close(float(out[i, d]), expected)


@pytest.mark.parametrize("gated", [False, True])
def test_outputs_beyond_float16_are_kept(gated):
    layer = T5FeedForward(D, F, 0.0, gated=gated).half()
    for parameter in layer.parameters():
        torch.nn.init.constant_(parameter, 20.0)
    x = torch.full((1, D), 10.0, dtype=torch.float16)
    out = layer(x if not gated else x / 8)
    # 10 * 20 * 3 = 600 inside, or gated 75 * 75; five of them times 20
    assert out.dtype == torch.float32
    expected = 60000.0 if not gated else 75 * 75 * 5 * 20.0
    # float16 rounds by up to 2**-11 = 5e-4, the product of 75 and 75 too
    torch.testing.assert_close(out, torch.full((1, D), expected), rtol=1e-2, atol=0)
    if not gated:
        torch.testing.assert_close(layer(x * 2), out * 2)  # 120000
