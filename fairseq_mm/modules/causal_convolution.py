"""Convolution over the past and the present, for whole sequences or step by step."""

import math
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_mm.modules.linear import linear


class CausalConvolution(nn.Module):
    """Convolution followed by a gated linear unit, [B, T, I] -> [B, T, O].

    Gehring et al. 2017, section 3.2; output t depends on inputs t - width + 1 to t.

    Args:
        input_dim: I.
        output_dim: O.
        dropout: Dropout of the input; the scale of the initial weights depends on it.
    """

    def __init__(self, input_dim: int, output_dim: int, width: int, *, dropout: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * output_dim, input_dim, width))
        self.bias = nn.Parameter(torch.zeros(2 * output_dim))
        nn.init.normal_(self.weight, std=math.sqrt(4 * (1 - dropout) / (width * input_dim)))
        self.width = width
        self.input_dim = input_dim
        self.step_weight: Optional[Tensor] = None

    def forward(self, x: Tensor) -> Tensor:
        """
        Args:
            x: ``[B, T, I]``.

        Returns:
            ``[B, T, O]``.
        """
        x = F.pad(x, (0, 0, self.width - 1, 0)).transpose(1, 2)
        return F.glu(F.conv1d(x, self.weight, self.bias).transpose(1, 2), dim=2)

    def step(self, x: Tensor, window: Optional[Tensor]) -> tuple[Tensor, Tensor]:
        """
        Args:
            x: ``[B, I]`` input of the newest time.
            window: ``[B, (width - 1) I]`` the inputs before it; None at the beginning.

        Returns:
            output: ``[B, O]``.
            window: the next step's.
        """
        if window is None:
            window = x.new_zeros(x.size(0), (self.width - 1) * self.input_dim)
        window = torch.cat([window, x], dim=1)  # [B, width I], the oldest first
        weight = self.step_weight
        if weight is None:
            weight = self._as_matrix()
        return F.glu(linear(window, weight, self.bias), dim=1), window[:, self.input_dim :]

    def fold(self) -> None:
        """Lays the weights out for :meth:`step` once: for inference."""
        with torch.no_grad():
            self.step_weight = self._as_matrix()

    def _as_matrix(self) -> Tensor:
        return self.weight.transpose(1, 2).flatten(1)  # [2 O, width I]

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "CausalConvolution":
        super()._apply(fn, *args, **kwargs)
        if self.step_weight is not None:
            self.step_weight = fn(self.step_weight)
        return self
