"""Scaled dot-product attention, by PyTorch's fused kernel if the installed PyTorch has it."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

# Looked up once: stock fairseq 0.12.2 still runs on PyTorch 1.12, which lacks it.
_FUSED = getattr(F, "scaled_dot_product_attention", None)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Split the channels into heads: [B, T, H * A] -> [B, H, T, A]."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Inverse of :func:`split_heads`."""
    return x.transpose(1, 2).flatten(2)


def attention_weights(
    query: Tensor, key: Tensor, attention_mask: Optional[Tensor] = None
) -> Tensor:
    """Compute ``softmax(query key / sqrt(A))`` in float32, with the dtype of the query.

    Args:
        query: [..., T, A].
        key: [..., S, A].
        attention_mask: Bool tensor that broadcasts to [..., T, S], True where a query may attend;
            at least one entry of each row is True. None to attend everywhere.
    """
    # The product is in the dtype of the inputs, as in the fused kernels, but the softmax in
    # float32, so that weights agree with :func:`attend`.
    scores = torch.matmul(query, key.transpose(-1, -2)).float() * query.size(-1) ** -0.5
    if attention_mask is not None:
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
    """Average values [..., S, A] to [..., T, A] by :func:`attention_weights` after dropout."""
    if _FUSED is None:
        # Callers pass 0 in evaluation, so dropout needs no flag here, as
        # in the fused kernel.
        weights = F.dropout(attention_weights(query, key, attention_mask), dropout)
        return torch.matmul(weights, value)
    return _FUSED(query, key, value, attn_mask=attention_mask, dropout_p=dropout)


def attend_causally(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute :func:`attend` with query t attending to keys 0 to t; all arguments are [..., T, A].

    A function of its own because the fused kernels are faster without a mask.
    """
    if _FUSED is None:
        T = query.size(-2)
        attention_mask = torch.ones(T, T, dtype=torch.bool, device=query.device).tril()
        return attend(query, key, value, attention_mask)
    return _FUSED(query, key, value, is_causal=True)
