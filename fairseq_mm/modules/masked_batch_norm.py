"""Defines a batch normalisation that ignores padding."""

from typing import Any

import torch
from torch import Tensor, nn


class MaskedBatchNorm(nn.Module):
    """Batch normalisation (Ioffe and Szegedy 2015) with statistics over valid positions only.

    The running statistics are the mean over the first ``1 / momentum`` batches, then a moving
    average. The layer computes in float32. A batch with a single valid row has no variance and is
    normalised with the running statistics.

    Args:
        momentum: Minimum weight of a batch in the running statistics.
    """

    def __init__(self, channels: int, momentum: float = 0.01) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.num_batches: Tensor
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches", torch.zeros(()))
        self.momentum = momentum
        self.eps = 1e-5

    def _apply(self, *args: Any, **kwargs: Any) -> "MaskedBatchNorm":
        super()._apply(*args, **kwargs)
        self._keep_float32()
        return self

    def _keep_float32(self) -> None:
        # Half precision cannot resolve the small updates of running statistics, so they stay
        # float32 when fairseq casts the model.
        if self.running_mean.dtype != torch.float32:
            for name in ("running_mean", "running_var", "num_batches"):
                setattr(self, name, getattr(self, name).float())

    def forward(self, x: Tensor, valid_mask: Tensor) -> Tensor:
        """Normalise x [..., D]; ``valid_mask`` is [...] bool, False at padding.

        The shape and dtype of x do not change; values at padding are undefined.
        """
        self._keep_float32()  # fairscale's sharding casts buffers without calling _apply
        mean, variance = self.running_mean, self.running_var
        values = x.float()
        if self.training:
            # Weights, because a selection by the mask would wait for a GPU.
            mask = valid_mask.unsqueeze(-1)
            dims = tuple(range(x.dim() - 1))
            count = mask.sum()
            weights = mask / count.clamp(min=1)
            real = torch.where(mask, values, torch.zeros_like(values))
            batch_mean = (real * weights).sum(dim=dims)
            batch_variance = ((real - batch_mean).square() * weights).sum(dim=dims)
            # A single row has no variance.
            is_enough = count > 1
            mean = torch.where(is_enough, batch_mean, mean)
            with torch.no_grad():
                # As in PyTorch, a batch is normalised with its biased variance, and the running
                # statistics have the unbiased variance.
                correction = count / (count - 1).clamp(min=1)
                self.num_batches += is_enough
                # A moving average from the start would stay close to its initial 0 and 1 for
                # epochs, and normalise features of another scale wrongly in evaluation.
                share = self.num_batches.reciprocal().clamp(min=self.momentum, max=1) * is_enough
                self.running_mean.lerp_(batch_mean, share)
                self.running_var.lerp_(batch_variance * correction, share)
            variance = torch.where(is_enough, batch_variance, variance)
        scale = (variance + self.eps).rsqrt() * self.weight.float()
        return ((values - mean) * scale + self.bias.float()).to(x.dtype)
