"""T5's feed-forward layer: with a ReLU, or with a gate as in its version 1.1."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_mm.modules.linear import linear

# Scale of the inner layer in float16, because T5's outputs exceed its largest number. It is a power
# of two, so only numbers close to zero are rounded.
_SHRINKING = 16.0


class T5FeedForward(nn.Module):
    """Feed-forward layer ``W_o relu(W_i x)`` (Raffel et al. 2020, section 2.1), or with a gate
    ``W_o (gelu(W_g x) * W_i x)`` (Shazeer 2020), where gelu is its approximation by tanh.

    Args:
        dim: Dimension of input and output.
        inner_dim: Dimension of the inner layer.
        gated: True for the form with a gate.
    """

    def __init__(self, dim: int, inner_dim: int, dropout: float, *, gated: bool) -> None:
        super().__init__()
        self.inner_proj = nn.Linear(dim, inner_dim, bias=False)
        self.gate_proj = nn.Linear(dim, inner_dim, bias=False) if gated else None
        self.output_proj = nn.Linear(inner_dim, dim, bias=False)
        self.dropout = dropout
        nn.init.normal_(self.inner_proj.weight, std=dim**-0.5)
        if self.gate_proj is not None:
            nn.init.normal_(self.gate_proj.weight, std=dim**-0.5)
        nn.init.normal_(self.output_proj.weight, std=inner_dim**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., D]``; of float16 the output is float32."""
        inner = linear(x, self.inner_proj.weight)
        if self.gate_proj is None:
            inner = F.relu(inner)
        else:
            gate = F.gelu(linear(x, self.gate_proj.weight), approximate="tanh")
            if inner.dtype == torch.float16:
                gate = gate / _SHRINKING
            inner = gate * inner
        inner = F.dropout(inner, self.dropout, self.training)
        if inner.dtype != torch.float16:
            return linear(inner, self.output_proj.weight)
        if self.gate_proj is None:
            inner = inner / _SHRINKING
        return linear(inner, self.output_proj.weight).float() * _SHRINKING
