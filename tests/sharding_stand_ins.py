"""fairscale's FullyShardedDataParallel in processes on the CPU.

It computes what it does on GPUs: parameters, gradients and the optimizer's state are split between
processes, and gathered again. What it takes from CUDA has a stand-in here: streams, which order
work on a GPU and have nothing to do on a CPU, and two collectives that gloo lacks. Processes that
are forked for one training call :func:`install`, which changes PyTorch for good.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from torch import Tensor
from torch import distributed as dist

from fairseq_mm.compat import launching


class Stream:
    """Work is done when it is asked for."""

    def wait_stream(self, other: "Stream") -> None:
        pass

    def synchronize(self) -> None:
        pass


def call_main(cfg: Any, main: Callable[..., Any]) -> None:
    """fairseq's, in a process of its own: see :func:`install`."""
    if cfg.distributed_training.ddp_backend == "fully_sharded":
        install()
    distributed_utils.call_main(cfg, main)


def install() -> None:
    """Lets FullyShardedDataParallel run in this process, on the CPU."""
    from fairscale.nn.data_parallel import fully_sharded_data_parallel as sharding

    only = Stream()
    torch.cuda.Stream = torch.cuda.current_stream = lambda *unused: only
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.cuda.synchronize = lambda *unused: None
    Tensor.record_stream = lambda self, stream: None
    Tensor.cuda = lambda self, *unused, **unused_too: self
    Tensor.cpu = _copied
    dist._all_gather_base = _all_gather
    dist._reduce_scatter_base = _reduce_scatter
    sharding._get_default_cuda_device = lambda module: torch.device("cpu")
    cls = sharding.FullyShardedDataParallel
    cls._setup_streams = _where_cuda_seems_available(cls._setup_streams)
    check = launching.check_ddp_backend
    launching.check_ddp_backend = lambda cfg, *, on_cpu: check(cfg, on_cpu=False)


def _where_cuda_seems_available(function: Callable[..., None]) -> Callable[..., None]:
    def call(*args: Any) -> None:
        before = torch.cuda.is_available
        torch.cuda.is_available = lambda: True
        try:
            function(*args)
        finally:
            torch.cuda.is_available = before

    return call


def _copied(tensor: Tensor) -> Tensor:
    """A buffer is copied from the GPU before it is used again. What is on the CPU already, as
    the weights of a checkpoint, keeps the attributes that fairscale has given it."""
    found = tensor.to("cpu", copy=True)
    vars(found).update(vars(tensor))
    return found


def _all_gather(output: Tensor, part: Tensor, group: Any = None) -> None:
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part, group=group)
    output.copy_(torch.cat([x.flatten() for x in parts]).view_as(output))


def _reduce_scatter(output: Tensor, parts: Tensor, group: Any = None) -> None:
    total = parts.clone()
    dist.all_reduce(total, group=group)
    part = total.chunk(dist.get_world_size(group))[dist.get_rank(group)]
    output.copy_(part.view_as(output))
