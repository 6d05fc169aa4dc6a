"""T5's attention: scores are not scaled, a bias is added to them, and nothing else has one."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_mm.modules.linear import linear
from fairseq_mm.modules.transformer_layer import merge_heads, split_heads

_FUSED = getattr(F, "scaled_dot_product_attention", None)
# PyTorch 2.1 and newer let the caller choose the scale
_CAN_BE_UNSCALED = "scale=" in (getattr(_FUSED, "__doc__", None) or "")
_HALF = (torch.float16, torch.bfloat16)
# by which queries are made smaller where scores might leave the range of float16; a power of two,
# so that nothing is rounded
_SHRINKING = 8.0


def attend_unscaled(
    query: Tensor, key: Tensor, value: Tensor, bias: Optional[Tensor], dropout: float = 0.0
) -> Tensor:
    """Compute ``softmax(query key^T + bias) value``, with the softmax in float32.

    Args:
        query: [B, H, T, A].
        key: [B, H, S, A].
        value: [B, H, S, A].
        bias: Bias that broadcasts to [B, H, T, S], ``-inf`` at masked keys; each query has at least
            one visible key. None for zero.
        dropout: Dropout of the softmax.

    Returns:
        [B, H, T, A].
    """
    is_half_on_cpu = query.dtype in _HALF and query.device.type == "cpu"
    if _FUSED is not None and _CAN_BE_UNSCALED and not is_half_on_cpu:
        if bias is not None:
            bias = bias.to(query.dtype)
        return _FUSED(query, key, value, attn_mask=bias, dropout_p=dropout, scale=1.0)
    if query.dtype in _HALF:
        scores = torch.matmul(query / _SHRINKING, key.transpose(-1, -2)).float() * _SHRINKING
    else:
        scores = torch.matmul(query, key.transpose(-1, -2))
    if bias is not None:
        scores = scores + bias
    weights = F.dropout(scores.softmax(dim=-1), dropout, dropout > 0)
    return torch.matmul(weights.to(value.dtype), value)


class T5Attention(nn.Module):
    """Multi-head attention without scaling and without biases (Raffel et al. 2020, section 2.1).

    Args:
        dim: Dimension of input and output.
        num_heads: H.
        head_dim: A, which may differ from ``dim / num_heads``.
    """

    def __init__(self, dim: int, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        inner_dim = num_heads * head_dim
        self.query_proj = nn.Linear(dim, inner_dim, bias=False)
        self.key_proj = nn.Linear(dim, inner_dim, bias=False)
        self.value_proj = nn.Linear(dim, inner_dim, bias=False)
        self.output_proj = nn.Linear(inner_dim, dim, bias=False)
        # the missing scale of the scores stands in the initial queries
        nn.init.normal_(self.query_proj.weight, std=(dim * head_dim) ** -0.5)
        nn.init.normal_(self.key_proj.weight, std=dim**-0.5)
        nn.init.normal_(self.value_proj.weight, std=dim**-0.5)
        nn.init.normal_(self.output_proj.weight, std=inner_dim**-0.5)

    def queries(self, x: Tensor) -> Tensor:
        """``[B, H, T, A]`` of ``[B, T, D]``."""
        return split_heads(linear(x, self.query_proj.weight), self.num_heads)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, H, S, A]`` each, of ``[B, S, D]``."""
        return (
            split_heads(linear(x, self.key_proj.weight), self.num_heads),
            split_heads(linear(x, self.value_proj.weight), self.num_heads),
        )

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Optional[Tensor]) -> Tensor:
        """As :func:`attend_unscaled`, but ``[B, T, D]``, after the last projection."""
        dropout = self.dropout if self.training else 0.0
        attended = merge_heads(attend_unscaled(query, key, value, bias, dropout))
        return linear(attended, self.output_proj.weight)
