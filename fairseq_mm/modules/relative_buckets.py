"""T5's bias of attention by the distance between two tokens, in buckets that widen with it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def relative_buckets(
    offsets: Tensor, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> Tensor:
    """Raffel et al. 2020, section 2.1: half of the buckets hold one distance each, the others
    ranges that grow as the logarithm does, up to ``max_distance``; all beyond share the last.

    Args:
        offsets: key's position minus query's, any shape.
        bidirectional: half of the buckets are for keys after the query; else those count as
            distance 0.
        num_buckets: an even number, with ``bidirectional`` a multiple of four.
        max_distance: from which on distances share a bucket.

    Returns:
        int64 of the shape of ``offsets``, 0 to ``num_buckets - 1``.
    """
    if bidirectional:
        num_buckets //= 2
        first = (offsets > 0).long() * num_buckets
        distances = offsets.abs()
    else:
        first = torch.zeros_like(offsets)
        distances = (-offsets).clamp(min=0)
    num_exact = num_buckets // 2
    # in float32, as the published models were trained: a distance on the border of two ranges goes
    # where rounding puts it
    shares = torch.log(distances.clamp(min=1).float() / num_exact)
    shares = shares / math.log(max_distance / num_exact) * (num_buckets - num_exact)
    ranges = (num_exact + shares.long()).clamp(max=num_buckets - 1)
    return first + torch.where(distances < num_exact, distances, ranges)


class RelativeBias(nn.Module):
    """A number for each head and bucket of distances, shared by the layers of a stack.

    Args:
        num_buckets: see :func:`relative_buckets`.
        num_heads: H.
        max_distance: see :func:`relative_buckets`.
        bidirectional: keys may stand after the query.
    """

    def __init__(
        self, num_buckets: int, num_heads: int, *, max_distance: int, bidirectional: bool
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def _of_offsets(self, offsets: Tensor) -> Tensor:
        """``[H, count]`` of ``[count]``."""
        buckets = relative_buckets(
            offsets,
            bidirectional=self.bidirectional,
            num_buckets=len(self.weight),
            max_distance=self.max_distance,
        )
        return F.embedding(buckets, self.weight).t()

    def forward(self, length: int) -> Tensor:
        """``[1, H, length, length]``: of each query (third) and key (last)."""
        offsets = torch.arange(1 - length, length, device=self.weight.device)
        # window i begins at offset i + 1 - length, which is where query length - 1 - i begins
        windows = self._of_offsets(offsets).unfold(-1, length, 1)
        return windows.flip(1).unsqueeze(0)

    def of_newest(self, length: int) -> Tensor:
        """``[H, length]``: of the query at position ``length - 1`` and keys 0 to ``length - 1``."""
        return self._of_offsets(torch.arange(1 - length, 1, device=self.weight.device))
