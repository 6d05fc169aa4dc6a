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
            rows = values[valid_mask]
            if len(rows) > 1:
                mean, variance = rows.mean(dim=0), rows.var(dim=0, unbiased=False)
                with torch.no_grad():
                    # As in PyTorch, a batch is normalised with its biased variance, and the running
                    # statistics have the unbiased variance.
                    correction = len(rows) / (len(rows) - 1)
                    self.num_batches += 1
                    # A moving average from the start would stay close to its initial 0 and 1 for
                    # epochs, and normalise features of another scale wrongly in evaluation.
                    share = self.num_batches.reciprocal().clamp(min=self.momentum)
                    self.running_mean.lerp_(mean, share)
                    self.running_var.lerp_(variance * correction, share)
        scale = (variance + self.eps).rsqrt() * self.weight.float()
        return ((values - mean) * scale + self.bias.float()).to(x.dtype)
