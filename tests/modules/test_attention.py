"""Attention by the fused kernel equals the formula."""

import math

import pytest
import torch

from fairseq_mm.modules import attention
from fairseq_mm.modules.t5_layers import attend_unscaled

B, T, S, A = 2, 3, 5, 4


def loops(query, key, value, attention_mask):
    out = torch.zeros(*query.shape[:-1], value.size(-1))
    for b in range(query.size(0)):
        for t in range(query.size(1)):
            exponentials = [
                math.exp(float(query[b, t] @ key[b, s]) / math.sqrt(A))
                if attention_mask[b, t, s]
                else 0
                for s in range(key.size(1))
            ]
            for s, exponential in enumerate(exponentials):
                out[b, t] += exponential / sum(exponentials) * value[b, s]
    return out


def test_attention_equals_loops():
    torch.manual_seed(1)
    query, key, value = torch.randn(B, T, A), torch.randn(B, S, A), torch.randn(B, S, A)
    everything = torch.ones(B, T, S, dtype=torch.bool)
    torch.testing.assert_close(
        attention.attend(query, key, value), loops(query, key, value, everything)
    )
    some = torch.rand(B, T, S) < 0.5
    some[..., 2] = True
    torch.testing.assert_close(
        attention.attend(query, key, value, some), loops(query, key, value, some)
    )
    bias = torch.zeros(B, T, S).masked_fill(~some, -math.inf)
    torch.testing.assert_close(
        attention.attend(query, key, value, bias), loops(query, key, value, some)
    )
    weights = attention.attention_weights(query, key, some)
    torch.testing.assert_close(weights @ value, loops(query, key, value, some))
    assert not weights[~some].any()


@pytest.mark.parametrize("unscaled", [False, True])
def test_keys_in_half_precision_belong_to_a_query_in_float32(unscaled):
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 8)
    bias = torch.zeros(2, 1, 1, 6)
    bias[..., 4:] = float("-inf")
    function = attend_unscaled if unscaled else attention.attend
    expected = function(query, key, value, bias)
    found = function(query, key.bfloat16(), value.bfloat16(), bias.bfloat16())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)
    # the keys that the bias hides have no effect at all
    key[..., 4:, :], value[..., 4:, :] = 9, 9
    again = function(query, key.bfloat16(), value.bfloat16(), bias.bfloat16())
    assert torch.equal(again, found)
