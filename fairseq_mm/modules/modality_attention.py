"""Attention over modalities: the second level of hierarchical attention."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class ModalityAttention(nn.Module):
    """``z = sum_m b_m z_m`` with ``b = softmax_m(v tanh(W h + c + U_m z_m))``.

    Libovicky and Helcl 2017, section 3.2 (equations 8 to 10), where the contexts z_m of the
    modalities have been projected to one width already.

    Args:
        query_dim: Q of the decoder's state h.
        context_dim: C of each context.
        hidden_dim: A of the hidden layer.
        num_modalities: M.
    """

    def __init__(
        self, query_dim: int, context_dim: int, hidden_dim: int, *, num_modalities: int
    ) -> None:
        super().__init__()
        self.query_proj = nn.Linear(query_dim, hidden_dim)  # W and c
        self.context_projs: Any = nn.ModuleList(
            nn.Linear(context_dim, hidden_dim, bias=False) for _ in range(num_modalities)
        )
        self.score_weight = nn.Parameter(torch.empty(hidden_dim))
        nn.init.uniform_(self.score_weight, -(hidden_dim**-0.5), hidden_dim**-0.5)

    def forward(self, query: Tensor, contexts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """
        Args:
            query: ``[..., Q]``.
            contexts: M tensors ``[..., C]``.

        Returns:
            context: ``[..., C]``.
            weights: ``[..., M]``; they sum to 1.
        """
        projected = [proj(z) for proj, z in zip(self.context_projs, contexts)]
        hidden = torch.tanh(torch.stack(projected, dim=-2) + self.query_proj(query).unsqueeze(-2))
        weights = torch.matmul(hidden, self.score_weight).float().softmax(dim=-1).to(query.dtype)
        stacked = torch.stack(list(contexts), dim=-2)  # [..., M, C]
        return torch.matmul(weights.unsqueeze(-2), stacked).squeeze(-2), weights
