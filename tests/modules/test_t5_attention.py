"""T5's attention equals its formula, by the fused kernel and without, in half precision too."""

import math

import pytest
import torch
from numerics import assert_close

from fairseq_mm.modules.t5_layers import T5Attention, attend_unscaled

B, H, T, S, A = 2, 3, 4, 5, 6


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    bias = torch.randn(1, H, T, S).masked_fill(torch.rand(B, 1, T, S) < 0.3, -math.inf)
    bias[..., 2] = 0.5
    return torch.randn(B, H, T, A), torch.randn(B, H, S, A), torch.randn(B, H, S, A), bias


def loops(query, key, value, bias):
    out = torch.zeros(B, H, T, A)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                scores = [
                    math.exp(float(query[b, h, t] @ key[b, h, s]) + float(bias[b, h, t, s]))
                    for s in range(S)
                ]
                for s in range(S):
                    out[b, h, t] += scores[s] / sum(scores) * value[b, h, s]
    return out


def test_attention_equals_loops(inputs):
    torch.testing.assert_close(attend_unscaled(*inputs), loops(*inputs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_near_and_survives_large_scores(inputs, dtype):
    query, key, value, bias = (x.to(dtype) for x in inputs)
    out = attend_unscaled(query, key, value, bias)
    assert out.dtype == dtype
    expected = loops(*(x.float() for x in (query, key, value, bias)))
    # bfloat16 has 8 bits, of which the last is lost about ten times
    torch.testing.assert_close(out.float(), expected, atol=0.05, rtol=0.05)
    large = attend_unscaled(query * 150, key * 150, value, bias)  # scores beyond 65504
    assert torch.isfinite(large).all()


def test_layer_has_no_bias_and_any_head_dim():
    torch.manual_seed(0)
    attention = T5Attention(7, H, A, dropout=0.0)
    assert {name: x.shape for name, x in attention.named_parameters()} == {
        "query_proj.weight": (H * A, 7),
        "key_proj.weight": (H * A, 7),
        "value_proj.weight": (H * A, 7),
        "output_proj.weight": (7, H * A),
    }
    x, source = torch.randn(B, T, 7), torch.randn(B, S, 7)
    bias = torch.randn(1, H, T, S).expand(B, -1, -1, -1)
    query = attention.queries(x)
    key, value = attention.keys_and_values(source)
    assert_close(query[1, 2], (x[1] @ attention.query_proj.weight.t())[:, 2 * A :])
    out = attention(query, key, value, bias)
    merged = loops(query, key, value, bias).transpose(1, 2).reshape(B, T, H * A)
    assert_close(out, merged @ attention.output_proj.weight.t())
