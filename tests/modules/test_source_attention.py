"""Attention to the source equals loops over times and keys."""

import math

import pytest
import torch
from numerics import assert_close

from fairseq_mm.modules.attention import SourceAttention

B, C, T, S, E = 2, 7, 5, 4, 6


@pytest.fixture(params=[1, 3])
def attention(request):
    torch.manual_seed(4)
    module = SourceAttention(C, E, request.param, dropout=0.1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module


@pytest.fixture
def inputs():
    torch.manual_seed(6)
    return {
        "hidden": torch.randn(B, T, C),
        "embedding": torch.randn(B, T, E),
        "keys": torch.randn(B, S, E),
        "values": torch.randn(B, S, E),
        "valid_mask": torch.tensor([[True] * S, [False, False, True, True]]),
    }


def normalized(layer, x):
    """``g v / |v| x + b``."""
    v, g = layer.weight_v, layer.weight_g
    rows = [float(g[o] / v[o].square().sum().sqrt()) * (v[o] @ x) for o in range(len(v))]
    return torch.stack(rows) + layer.bias


def expected_output(module, inputs, row):
    """Gehring et al. 2017, equations 1 and 2, with weight-normalised projections."""
    hidden, weights = inputs["hidden"][row], torch.zeros(module.num_heads, T, S)
    out = torch.zeros(T, C)
    width = E // module.num_heads
    for t in range(T):
        d = module.hidden_proj.weight @ hidden[t] + module.hidden_proj.bias
        query = normalized(module.query_proj, d + inputs["embedding"][row, t])
        context = torch.zeros(E)
        for head in range(module.num_heads):
            part = slice(head * width, (head + 1) * width)
            exponentials = torch.zeros(S)
            for s in range(S):
                if inputs["valid_mask"][row, s]:
                    key = normalized(module.key_proj, inputs["keys"][row, s])
                    exponentials[s] = math.exp(float(query[part] @ key[part]) / math.sqrt(width))
            for s in range(S):
                weights[head, t, s] = exponentials[s] / exponentials.sum()
                value = normalized(module.value_proj, inputs["values"][row, s])
                context[part] += weights[head, t, s] * value[part]
        out[t] = hidden[t] + normalized(module.output_proj, context)
    return out, weights


def test_equals_loops_over_times_and_keys(attention, inputs):
    trace = []
    valid_mask = inputs["valid_mask"][:, None, None]
    with torch.no_grad():
        source = attention.project_source(inputs["keys"], inputs["values"])
        out = attention(inputs["hidden"], inputs["embedding"], source, valid_mask, trace)
        for row in range(B):
            expected, weights = expected_output(attention, inputs, row)
            assert_close(out[row], expected)
            assert_close(trace[0][row], weights)


def test_padding_gets_no_attention_unless_asked_for(attention, inputs):
    with torch.no_grad():
        outs = {}
        for scale in (1, 50):
            keys, values = (inputs[name].clone() for name in ("keys", "values"))
            keys[1, :2] *= scale
            values[1, :2] *= scale
            source = attention.project_source(keys, values)
            for valid_mask in (inputs["valid_mask"][:, None, None], None):
                outs[scale, valid_mask is None] = attention(
                    inputs["hidden"], inputs["embedding"], source, valid_mask
                )
    assert torch.equal(outs[1, False], outs[50, False])
    assert not torch.allclose(outs[1, True][1], outs[50, True][1])
    torch.testing.assert_close(outs[1, True][0], outs[1, False][0])  # it has no padding
