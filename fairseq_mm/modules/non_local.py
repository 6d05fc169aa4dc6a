"""The non-local block: every position of a grid sees all others."""

import torch
from torch import Tensor, nn

from fairseq_mm.modules.float32_linear import float32_linear
from fairseq_mm.modules.masked_batch_norm import MaskedBatchNorm


class NonLocalBlock(nn.Module):
    """Wang et al. 2018, https://arxiv.org/abs/1711.07971, as in Li et al. 2020, section 3.2:
    dot products (equation 3) over the number of positions, no softmax and no subsampling, and a
    residual connection (equation 4). It starts as the identity.

    Computed in float32: the output grows with the third power of the grid's values, which half
    precision does not hold.

    Args:
        channels: C of the grid.
        inner_dim: width of theta, phi and g; half the channels by default.
        has_batch_norm: normalise W_z y over the batch, as the released code does.
    """

    def __init__(self, channels: int, inner_dim: int = 0, *, has_batch_norm: bool = False) -> None:
        super().__init__()
        inner_dim = inner_dim or max(channels // 2, 1)
        self.theta = nn.Linear(channels, inner_dim)
        self.phi = nn.Linear(channels, inner_dim)
        self.g = nn.Linear(channels, inner_dim)
        self.output = nn.Linear(inner_dim, channels)
        self.norm = MaskedBatchNorm(channels, momentum=0.1) if has_batch_norm else None
        last = self.norm if self.norm is not None else self.output
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def similarities(self, grid: Tensor) -> Tensor:
        """``[B, R, R]`` f(x_i, x_j) = theta(x_i) phi(x_j) of a grid ``[B, R, C]`` (equation 3)."""
        theta, phi = float32_linear(self.theta, grid), float32_linear(self.phi, grid)
        return torch.matmul(theta, phi.transpose(-1, -2))

    def forward(self, grid: Tensor, valid_mask: Tensor) -> Tensor:
        """
        Args:
            grid: ``[B, R, C]``: R positions of C channels.
            valid_mask: ``[B]`` bool, False where a whole grid is padding.

        Returns:
            ``[B, R, C]`` float32.
        """
        num_positions = grid.size(1)
        values = torch.matmul(self.similarities(grid) / num_positions, float32_linear(self.g, grid))
        update = float32_linear(self.output, values)
        if self.norm is not None:
            update = self.norm(update, valid_mask.unsqueeze(1).expand(-1, num_positions))
        return grid + update
