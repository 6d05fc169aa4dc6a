"""Defines post-norm transformer layers, equal to PyTorch's ``nn.TransformerEncoderLayer``."""

from typing import Optional

import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_mm.modules.attention import attend, merge_heads, split_heads


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        # As nn.MultiheadAttention: Xavier over the joined matrix, not over each of its three parts.
        nn.init.xavier_uniform_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project x [B, T, dim] to queries, keys and values, [B, heads, T, head_dim] each."""
        query, key, value = self.in_proj(x).chunk(3, dim=-1)
        return (
            split_heads(query, self.num_heads),
            split_heads(key, self.num_heads),
            split_heads(value, self.num_heads),
        )

    def forward(self, x: Tensor, attention_mask: Optional[Tensor] = None) -> Tensor:
        """Attend within x: [B, T, dim] -> [B, T, dim].

        ``attention_mask`` is bool, broadcasts to [B, heads, T, T], and is True where a query may
        attend.
        """
        rate = self.dropout if self.training else 0.0
        return self.out_proj(merge_heads(attend(*self.project(x), attention_mask, dropout=rate)))


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, dim: int, inner_dim: int, dropout: float) -> None:
        super().__init__()
        self.inner_proj = nn.Linear(dim, inner_dim)
        self.out_proj = nn.Linear(inner_dim, dim)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        inner = F.dropout(F.relu(self.inner_proj(x)), self.dropout, self.training)
        return self.out_proj(inner)


class TransformerEncoderLayer(nn.Module):
    """Self-attention and feed-forward layer, each with dropout, residual connection and norm
    (post-norm).
    """

    def __init__(
        self, dim: int, num_heads: int, inner_dim: int, dropout: float, attention_dropout: float
    ) -> None:
        super().__init__()
        self.self_attention = SelfAttention(dim, num_heads, attention_dropout)
        self.self_attention_norm = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, inner_dim, dropout)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, attention_mask: Optional[Tensor] = None) -> Tensor:
        """Compute the layer [B, T, dim]; see :meth:`SelfAttention.forward` for the mask."""
        x = self.self_attention_norm(x + self.dropout(self.self_attention(x, attention_mask)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
