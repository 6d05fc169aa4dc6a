"""Additive attention with optional coverage: a memory of its past weights."""

from typing import Optional

import torch
from torch import Tensor, nn


class CoverageAttention(nn.Module):
    """``softmax_i(v . tanh(W_h h_i + W_s s_t + w_c c_i + b))`` (See et al. 2017, equations 1, 2 and
    11), where the coverage ``c_i`` is the sum of the weights that i got at the times before.

    Args:
        query_dim: width of the states s.
        key_dim: width of the source's vectors h.
        attention_dim: A.
        has_coverage: with the term of ``c_i``, without which all times are computed at once.
    """

    def __init__(
        self, query_dim: int, key_dim: int, attention_dim: int, *, has_coverage: bool = False
    ) -> None:
        super().__init__()
        self.key_proj = nn.Linear(key_dim, attention_dim)  # with b
        self.query_proj = nn.Linear(query_dim, attention_dim, bias=False)
        self.coverage_weight: Optional[nn.Parameter] = None
        if has_coverage:
            self.coverage_weight = nn.Parameter(torch.zeros(attention_dim))
        self.score = nn.Parameter(torch.empty(attention_dim).uniform_(-1, 1) / attention_dim**0.5)

    def project(self, source: Tensor) -> Tensor:
        """``W_h h + b``: ``[B, S, A]`` of ``[B, S, K]``."""
        return self.key_proj(source)

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        is_padding: Tensor,
        coverage: Optional[Tensor] = None,
    ) -> tuple[Tensor, Optional[Tensor]]:
        """Compute attention weights.

        Args:
            queries: [B, T, Q].
            keys: [B, S, A], see :meth:`project`.
            is_padding: [B, S] bool; at least one entry of a row is False.
            coverage: [B, S] float32 before the first step; None for zeros.

        Returns:
            weights: [B, T, S] float32.
            coverages: [B, T + 1, S] float32 before each step and after the last; None without
                coverage.
        """
        queries = self.query_proj(queries).unsqueeze(2)  # [B, T, 1, A]
        keys = keys.unsqueeze(1)  # [B, 1, S, A]
        is_padding = is_padding.unsqueeze(1)  # [B, 1, S]
        if self.coverage_weight is None:
            return self._weights(queries + keys, is_padding), None
        if coverage is None:
            coverage = torch.zeros_like(is_padding[:, 0], dtype=torch.float)
        weights, coverages = [], [coverage]
        for query in queries.split(1, dim=1):
            term = coverages[-1].to(keys.dtype)[:, None, :, None] * self.coverage_weight
            weights.append(self._weights(query + keys + term, is_padding))
            coverages.append(coverages[-1] + weights[-1][:, 0])
        return torch.cat(weights, dim=1), torch.stack(coverages, dim=1)

    def _weights(self, hidden: Tensor, is_padding: Tensor) -> Tensor:
        scores = torch.matmul(hidden.tanh(), self.score).float()
        return scores.masked_fill(is_padding, float("-inf")).softmax(dim=2)
