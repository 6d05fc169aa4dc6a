"""Gathers rows of tensors from all processes, with gradients."""

from typing import Any

import torch
from fairseq.distributed import utils as distributed
from torch import Tensor


class Gatherer:
    """Communicator that gathers the rows (along dimension 0) of tensors from all processes.

    The gradient of a gathered row flows back to the process that provided the row. Every process
    must create a gatherer and call its methods equally often.

    Args:
        count: Number of this process's rows, which may be 0.
        device: Device on which the processes exchange their counts.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.group = distributed.get_data_parallel_group()
        self.rank = distributed.get_data_parallel_rank()
        own = torch.tensor([count], device=device)
        # Counts first: batches of different processes differ in size, and a dummy batch has no
        # rows.
        self.counts = [int(x) for x in distributed.all_gather(own, self.group)]
        self.start = sum(self.counts[: self.rank])  # first row of this process

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, in the order of the ranks.

        Args:
            rows: Rows of this process; rows beyond the ``count`` of the constructor are ignored.
        """
        if rows.is_floating_point():
            # all_gather of torch.distributed has no gradient.
            return _Gather.apply(rows, self)
        return self.gather_values(rows)

    def gather_values(self, rows: Tensor) -> Tensor:
        """Return the same rows as :meth:`gather`, but without gradients."""
        # all_gather needs tensors of equal size
        padded = rows.new_zeros(max(self.counts), *rows.shape[1:])
        count = self.counts[self.rank]
        padded[:count] = rows[:count]
        gathered = distributed.all_gather(padded, self.group)
        return torch.cat([x[:n] for x, n in zip(gathered, self.counts)])


class _Gather(torch.autograd.Function):
    """Gathering of all processes' rows as an autograd function.

    The backward pass sums the gradients of a row over all processes.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Gatherer) -> Tensor:
        ctx.places, ctx.shape = places, rows.shape
        return places.gather_values(rows.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        places = ctx.places
        # all_reduce works in place, and autograd may use the incoming gradient elsewhere.
        gradient = gradient.contiguous().clone()
        # Every process has a loss of its own over all rows, so the gradient of a row is the sum
        # over processes.
        distributed.all_reduce(gradient, places.group)
        count = places.counts[places.rank]
        own = gradient.new_zeros(ctx.shape)
        own[:count] = gradient[places.start : places.start + count]
        return own, None
