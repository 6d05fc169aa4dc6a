"""Defines a causal convolution, computed for whole sequences or step by step."""

import math
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_mm.modules.linear import linear


class CausalConvolution(nn.Module):
    """Convolution followed by a gated linear unit, [B, T, input_dim] -> [B, T, output_dim].

    Gehring et al. 2017, section 3.2; output t depends on the ``width`` inputs t - width + 1 to t.

    Args:
        dropout: Dropout rate that the caller applies to the input; the initial weights' scale
            compensates for it.
    """

    def __init__(self, input_dim: int, output_dim: int, width: int, *, dropout: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * output_dim, input_dim, width))
        self.bias = nn.Parameter(torch.zeros(2 * output_dim))
        # Gehring et al. 2017, section 3.5: a gated linear unit quarters the variance of its input,
        # and dropout keeps a share of 1 - p.
        nn.init.normal_(self.weight, std=math.sqrt(4 * (1 - dropout) / (width * input_dim)))
        self.width = width
        self.input_dim = input_dim
        # A plain attribute, not a parameter or buffer: a state dict must have the same keys before
        # and after folding.
        self.step_weight: Optional[Tensor] = None

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, self.width - 1, 0)).transpose(1, 2)
        return F.glu(F.conv1d(x, self.weight, self.bias).transpose(1, 2), dim=2)

    def step(self, x: Tensor, window: Optional[Tensor]) -> tuple[Tensor, Tensor]:
        """Compute the output [B, output_dim] of the newest step, and the window for the next step.

        ``x`` [B, input_dim] is the input of the newest step. ``window`` [B, (width - 1) *
        input_dim] has the inputs of the ``width - 1`` steps before the newest step, where ``width``
        is the width of the kernel; it is None at the first step.
        """
        if window is None:
            window = x.new_zeros(x.size(0), (self.width - 1) * self.input_dim)
        # Flat, so that a step is a single product, computed by the fastest kernel of
        # :func:`linear`.
        window = torch.cat([window, x], dim=1)  # [B, width I], the oldest first
        weight = self.step_weight
        if weight is None:
            weight = self._as_matrix()
        return F.glu(linear(window, weight, self.bias), dim=1), window[:, self.input_dim :]

    def fold(self) -> None:
        """Store the weights in the layout that :meth:`step` needs; for inference only."""
        with torch.no_grad():
            self.step_weight = self._as_matrix()

    def _as_matrix(self) -> Tensor:
        return self.weight.transpose(1, 2).flatten(1)  # [2 O, width I]

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "CausalConvolution":
        # A folded model may still be moved or cast (the hub interface of fairseq folds when it is
        # built), which reaches only parameters and buffers.
        super()._apply(fn, *args, **kwargs)
        if self.step_weight is not None:
            self.step_weight = fn(self.step_weight)
        return self
