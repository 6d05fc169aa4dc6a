"""Attention by a network of one hidden layer."""

import torch
from torch import Tensor, nn


class AdditiveAttention(nn.Module):
    """``z = sum_i a_i V x_i`` with ``a = softmax(w tanh(K x_i + Q h))``.

    Bahdanau et al. 2015, appendix A.1.2. The projected context is linear in the weighted sum, so
    its projection V is applied to the elements, once a batch, instead of at each step.

    Args:
        query_dim: Q.
        context_dim: C of the elements.
        hidden_dim: A of the hidden layer.
        output_dim: V of the result.
    """

    def __init__(self, query_dim: int, context_dim: int, hidden_dim: int, output_dim: int) -> None:
        super().__init__()
        self.key_proj = nn.Linear(context_dim, hidden_dim, bias=False)
        self.value_proj = nn.Linear(context_dim, output_dim, bias=False)
        self.query_proj = nn.Linear(query_dim, hidden_dim, bias=False)
        self.score_weight = nn.Parameter(torch.empty(hidden_dim))
        nn.init.uniform_(self.score_weight, -(hidden_dim**-0.5), hidden_dim**-0.5)

    def project(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys ``[B, N, A]`` and values ``[B, N, V]`` of elements ``[B, N, C]``."""
        return self.key_proj(context), self.value_proj(context)

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, padding_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """
        Args:
            query: ``[B, Q]``.
            keys: ``[B, N, A]``, see :meth:`project`.
            values: ``[B, N, V]``.
            padding_mask: ``[B, N]`` bool, True at padding. At least one element a row must be real.

        Returns:
            context: ``[B, V]``.
            weights: ``[B, N]``; rows sum to 1, padding gets 0.
        """
        hidden = torch.tanh(keys + self.query_proj(query).unsqueeze(1))  # [B, N, A]
        scores = torch.matmul(hidden, self.score_weight).float()
        weights = scores.masked_fill(padding_mask, float("-inf")).softmax(dim=-1).to(values.dtype)
        return torch.matmul(weights.unsqueeze(1), values).squeeze(1), weights
