"""Sinusoidal encodings of positions."""

import math

import torch
from torch import Tensor


def sinusoids(positions: Tensor, dim: int, *, interleaved: bool = True) -> Tensor:
    """Vaswani et al. 2017, section 3.5: sines and cosines of geometric frequencies.

    Args:
        positions: ``[...]`` numbers.
        dim: even.
        interleaved: sine and cosine of a frequency side by side; else all sines come first, as in
            Dai et al. 2019.

    Returns:
        ``[..., dim]`` float32.
    """
    exponents = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim
    angles = positions.float().unsqueeze(-1) * torch.exp(-math.log(10000.0) * exponents)
    if interleaved:
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
