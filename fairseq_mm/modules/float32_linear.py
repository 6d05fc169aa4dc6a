"""A linear layer whose product is too large, or too fine, for half precision."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def float32_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """``[..., output]`` float32 of ``[..., input]``, under autocast too."""
    bias = None if layer.bias is None else layer.bias.float()
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.float(), layer.weight.float(), bias)
