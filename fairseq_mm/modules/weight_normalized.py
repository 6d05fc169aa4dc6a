"""Weight-normalised matrices: a length and a direction for each output.

Salimans, Kingma. Weight normalization. NIPS 2016. https://arxiv.org/abs/1602.07868, equation 2.
"""

from typing import Any, Optional

import torch
from torch import Tensor, nn


class WeightNormalized(nn.Module):
    """Matrices ``g v / |v|``, normalised over the inputs of each output, with biases.

    Args:
        shape: Shape of the matrices: ``(O, I)``, or ``(G, O, I)`` for G matrices.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight_v = nn.Parameter(torch.empty(shape))
        self.weight_g = nn.Parameter(torch.empty(*shape[:-1], 1))
        self.bias = nn.Parameter(torch.empty(shape[:-1]))
        self.folded: Optional[Tensor] = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Directions of N(0, 1/I), and lengths that leave them as they are."""
        nn.init.normal_(self.weight_v, std=self.weight_v.size(-1) ** -0.5)
        with torch.no_grad():
            self.weight_g.copy_(self.weight_v.norm(dim=-1, keepdim=True))
        nn.init.zeros_(self.bias)

    def weight(self) -> Tensor:
        """The matrices, in the parameters' precision; norms are taken in float32."""
        if self.folded is not None:
            return self.folded
        direction = self.weight_v.float()
        scale = self.weight_g.float() / direction.norm(dim=-1, keepdim=True)
        return (direction * scale).to(self.weight_v.dtype)

    def fold(self) -> None:
        """Computes the matrices once: for inference, after which no training may follow."""
        self.folded = None
        with torch.no_grad():
            self.folded = self.weight()

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "WeightNormalized":
        super()._apply(fn, *args, **kwargs)
        if self.folded is not None:
            self.folded = fn(self.folded)
        return self
