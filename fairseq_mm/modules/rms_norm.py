"""Division by the root of the mean square, T5's normalisation."""

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Root mean square norm ``weight x / sqrt(mean(x^2) + epsilon)``, without mean and bias.

    Raffel et al. 2020, section 2.1; Zhang and Sennrich 2019. Computed in float32.

    Args:
        dim: Size of the last dimension.
        epsilon: Number added to the mean square.
    """

    def __init__(self, dim: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """``[..., dim]`` of the weight's type, of ``[..., dim]`` of any."""
        x = x.float()
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.epsilon)
        return self.weight * (x * scale).to(self.weight.dtype)
