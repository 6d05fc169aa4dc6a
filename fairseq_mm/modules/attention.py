"""Computes scaled dot-product attention by PyTorch's fused kernel."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Split the channels into heads: [B, T, heads * head_dim] -> [B, heads, T, head_dim]."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Undo :func:`split_heads`: [B, heads, T, head_dim] -> [B, T, heads * head_dim]."""
    return x.transpose(1, 2).flatten(2)


def attention_weights(
    query: Tensor, key: Tensor, attention_mask: Optional[Tensor] = None
) -> Tensor:
    """Compute attention weights ``softmax(query key^T / sqrt(head_dim))``.

    The softmax is computed in float32; the result [..., T, S] has the dtype of the query.

    Args:
        query: [..., T, head_dim].
        key: [..., S, head_dim].
        attention_mask: Tensor that broadcasts to [..., T, S]. A bool mask is True where a query may
            attend, at least at one key. Numbers, such as ``-inf``, are added to the scores. None to
            attend everywhere.
    """
    # The product is in the dtype of the keys, as in the fused kernels, but the softmax in float32,
    # so that weights agree with :func:`attend`.
    scores = torch.matmul(query.to(key.dtype), key.transpose(-1, -2)).float()
    scores = scores * query.size(-1) ** -0.5
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        scores = scores + attention_mask
    elif attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, float("-inf"))
    return scores.softmax(dim=-1).to(query.dtype)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor] = None,
    *,
    dropout: float = 0.0,
) -> Tensor:
    """Return the means [..., T, head_dim] of ``value`` [..., S, head_dim], weighted by attention.

    See :func:`attention_weights` for the weights and the other arguments. ``dropout`` is the
    dropout rate of the weights; callers pass 0 in evaluation. Keys and values in half precision
    may belong to a query in float32; the result has the dtype of the query.
    """
    if key.dtype != query.dtype:
        weights = F.dropout(attention_weights(query, key, attention_mask), dropout)
        return torch.matmul(weights.to(value.dtype), value).to(query.dtype)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout
    )


def attend_causally(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute :func:`attend` with a causal mask: query t attends to the keys 0 to t.

    All arguments are [..., T, head_dim].
    """
    # A function of its own, because the fused kernels are faster without a mask.
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)
