"""Batch normalisation that leaves padding out."""

from typing import Any

import torch
from torch import Tensor, nn


class MaskedBatchNorm(nn.Module):
    """Ioffe and Szegedy 2015 over valid positions: padding has no part in the statistics.

    The running statistics are the mean over all batches until ``momentum`` is the larger weight of
    the last: with a small momentum they would stay near 0 and 1, where they start, for epochs, and
    features of another scale would be nothing to a model that is evaluated.

    Computed in float32, and its running statistics stay in float32 whatever the weights are cast
    to: a hundredth of a difference is less than half precision resolves. A batch with a single
    real row has no variance: it is normalised with the running statistics.

    Args:
        channels: D.
        momentum: least share of a batch in the running statistics.
        eps: added to the variance.
    """

    def __init__(self, channels: int, momentum: float = 0.01, eps: float = 1e-5) -> None:
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
        self.eps = eps

    def _apply(self, *args: Any, **kwargs: Any) -> "MaskedBatchNorm":
        super()._apply(*args, **kwargs)
        self._keep_float32()
        return self

    def _keep_float32(self) -> None:
        if self.running_mean.dtype != torch.float32:
            for name in ("running_mean", "running_var", "num_batches"):
                setattr(self, name, getattr(self, name).float())

    def forward(self, x: Tensor, valid_mask: Tensor) -> Tensor:
        """
        Args:
            x: ``[..., D]``.
            valid_mask: ``[...]`` bool, False at padding.

        Returns:
            ``[..., D]``; what stands at padding means nothing.
        """
        self._keep_float32()  # fairscale's sharding casts buffers where _apply does not see it
        mean, variance = self.running_mean, self.running_var
        values = x.float()
        if self.training:
            rows = values[valid_mask]
            if len(rows) > 1:
                mean, variance = rows.mean(dim=0), rows.var(dim=0, unbiased=False)
                with torch.no_grad():
                    correction = len(rows) / (len(rows) - 1)
                    self.num_batches += 1
                    share = self.num_batches.reciprocal().clamp(min=self.momentum)
                    self.running_mean.lerp_(mean, share)
                    self.running_var.lerp_(variance * correction, share)
        scale = (variance + self.eps).rsqrt() * self.weight.float()
        return ((values - mean) * scale + self.bias.float()).to(x.dtype)
