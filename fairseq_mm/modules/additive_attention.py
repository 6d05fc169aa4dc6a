"""Attention whose scores are computed by a network with one hidden layer."""

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn


class AdditiveAttention(nn.Module):
    """Additive attention of a query h to elements x_i (Bahdanau et al. 2015, appendix A.1.2):

    a = softmax_i(w tanh(K x_i + Q h))
    z = sum_i a_i V x_i
    """

    def __init__(self, query_dim: int, context_dim: int, hidden_dim: int, output_dim: int) -> None:
        super().__init__()
        self.key_proj = nn.Linear(context_dim, hidden_dim, bias=False)
        self.value_proj = nn.Linear(context_dim, output_dim, bias=False)
        self.query_proj = nn.Linear(query_dim, hidden_dim, bias=False)
        self.score_weight = nn.Parameter(torch.empty(hidden_dim))
        nn.init.uniform_(self.score_weight, -(hidden_dim**-0.5), hidden_dim**-0.5)

    def project(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Project elements [B, N, context_dim] to keys [B, N, hidden_dim] and values [B, N,
        output_dim].
        """
        # V is linear, so it may precede the weighted sum: then it is computed once per batch and
        # not at every step of the decoder.
        return self.key_proj(context), self.value_proj(context)

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, padding_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attend from one query [B, query_dim] per row to the N elements of the same row, see
        :meth:`project`.

        ``padding_mask`` is [B, N] bool, True at padding; at least one element of each row is real.
        Returns the result [B, output_dim], and weights [B, N].
        """
        hidden = torch.tanh(keys + self.query_proj(query).unsqueeze(1))  # [B, N, A]
        scores = torch.matmul(hidden, self.score_weight).float()
        weights = scores.masked_fill(padding_mask, float("-inf")).softmax(dim=-1).to(values.dtype)
        return torch.matmul(weights.unsqueeze(1), values).squeeze(1), weights


class ModalityAttention(nn.Module):
    """Additive attention of a query h to one context z_m per modality m:

        b = softmax_m(v tanh(W h + c + U_m z_m))
        z = sum_m b_m z_m

    This is the second level of hierarchical attention (Libovicky and Helcl 2017, section 3.2,
    equations 8 to 10). U_c of equation 10 is missing, because all contexts have ``context_dim``
    channels.
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
        """Attend from a query [..., query_dim] to one context [..., context_dim] per modality.

        Returns the weighted sum [..., context_dim], and weights [..., num_modalities].
        """
        projected = [proj(z) for proj, z in zip(self.context_projs, contexts)]
        hidden = torch.tanh(torch.stack(projected, dim=-2) + self.query_proj(query).unsqueeze(-2))
        weights = torch.matmul(hidden, self.score_weight).float().softmax(dim=-1).to(query.dtype)
        stacked = torch.stack(list(contexts), dim=-2)  # [..., M, C]
        return torch.matmul(weights.unsqueeze(-2), stacked).squeeze(-2), weights


class CoverageAttention(nn.Module):
    """Attention of a decoder state s_t to encoder states h_i, with coverage.

        a_t = softmax_i(v . tanh(W_h h_i + W_s s_t + w_c c_i + b))

    See et al. 2017, equations 1, 2 and 11. The coverage ``c_i`` is the sum of the weights of
    ``h_i`` at all earlier decoding steps. With ``has_coverage``, steps are computed one after the
    other.
    """

    def __init__(
        self, query_dim: int, key_dim: int, attention_dim: int, *, has_coverage: bool = False
    ) -> None:
        super().__init__()
        self.key_proj = nn.Linear(key_dim, attention_dim)  # with b
        self.query_proj = nn.Linear(query_dim, attention_dim, bias=False)
        # Zeros, so that a model trained without coverage computes the same when its training goes
        # on with coverage, as in section 5 of the paper.
        self.coverage_weight: Optional[nn.Parameter] = None
        if has_coverage:
            self.coverage_weight = nn.Parameter(torch.zeros(attention_dim))
        self.score = nn.Parameter(torch.empty(attention_dim).uniform_(-1, 1) / attention_dim**0.5)

    def project(self, source: Tensor) -> Tensor:
        """Compute the keys ``W_h h_i + b`` [B, S, attention_dim] of states [B, S, key_dim]."""
        return self.key_proj(source)

    def forward(
        self, queries: Tensor, keys: Tensor, is_padding: Tensor, coverage: Optional[Tensor] = None
    ) -> tuple[Tensor, Optional[Tensor]]:
        """Compute the attention weights of T decoder states for S encoder states.

        Args:
            queries: [B, T, query_dim] decoder states.
            keys: [B, S, attention_dim], see :meth:`project`.
            is_padding: [B, S] bool, True at padding; at least one element of each row is real.
            coverage: [B, S] float32 coverage before the first of the T steps; None for zeros.

        Returns:
            Weights [B, T, S] float32; and the coverages [B, T + 1, S] float32 before each step and
                after the last step, or None without coverage.
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
            # Coverage stays float32 between steps: in float16 a sum of hundreds of small weights
            # would stop growing. Only the term of this step is cast.
            term = coverages[-1].to(keys.dtype)[:, None, :, None] * self.coverage_weight
            weights.append(self._weights(query + keys + term, is_padding))
            coverages.append(coverages[-1] + weights[-1][:, 0])
        return torch.cat(weights, dim=1), torch.stack(coverages, dim=1)

    def _weights(self, hidden: Tensor, is_padding: Tensor) -> Tensor:
        scores = torch.matmul(hidden.tanh(), self.score).float()
        return scores.masked_fill(is_padding, float("-inf")).softmax(dim=2)
