"""Count what a computation would ask of a GPU, by running it on a CPU.

A launch is an operator of the trace of PyTorch's profiler that computes something and calls no
other operator that does. Views, allocations and reads of metadata are not counted. Where a CPU
runs many operators for what is one call on a GPU, the call is counted as one launch: dropout, fused
attention, RMS norm, ``nn.LSTM`` and ``nn.GRU`` (each once forward, once backward), convolutions,
means and norms. A ``torch._foreach`` operator is counted as one launch for 64 tensors. PyTorch may
start several kernels for any of these calls.

A synchronisation is a call that must wait for the GPU: it reads a value (``.item()``, ``bool()``,
``.tolist()``, ``.cpu()``), it has a result whose size depends on values (``nonzero``, indexing by a
mask), or it copies from the CPU without ``non_blocking``. Tensors that such a call has moved to the
CPU, and tensors that are built without a device, stay on the CPU: operators on them are no
launches, and reading them is no synchronisation.
"""

import collections
import contextlib
import math
import sys
import unittest.mock
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import fairseq
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.profiler import record_function
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

import fairseq_mm
from fairseq_mm.modules import multi_scale_self_attention

_FREE = frozenset(
    "aten::" + name
    for name in (
        *("as_strided", "view", "_unsafe_view", "_reshape_alias", "reshape", "expand", "alias"),
        *("transpose", "permute", "t", "movedim", "select", "slice", "unsqueeze", "squeeze"),
        *("unflatten", "flatten", "split", "split_with_sizes", "chunk", "unbind", "narrow"),
        *("detach", "detach_", "diagonal", "view_as", "expand_as", "lift_fresh", "set_"),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"),
        *("resolve_conj", "resolve_neg", "result_type", "is_same_size", "item", "is_nonzero"),
        *("_local_scalar_dense", "to", "contiguous", "type_as", "broadcast_tensors", "data"),
        *("requires_grad_", "size", "stride", "numel", "_nested_tensor_size", "can_cast"),
    )
)
# one launch each, although PyTorch computes them by several operators on a CPU
_ATOMIC = frozenset(
    "aten::" + name
    for name in (
        *("native_dropout", "native_dropout_backward", "convolution", "convolution_backward"),
        *("mean", "norm", "linalg_vector_norm", "embedding_dense_backward", "addmm", "baddbmm"),
        "glu_backward",
        *("index_put_", "_index_put_impl_", "index_add_", "sort", "topk", "multinomial", "std"),
        # their scalars are tensors of one element, which are converted
        *("add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "div_", "pow"),
    )
)
_ONE, _HOST, _PHASE = "launch", "on the CPU", "phase: "
_TENSORS_PER_LAUNCH = 64
_READS = frozenset(
    (
        *("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__contains__"),
        *("nonzero", "equal", "allclose", "is_nonzero", "masked_select", "unique"),
        "unique_consecutive",
    )
)
_INDEXING = ("__getitem__", "__setitem__")
_FACTORIES = frozenset(
    (torch.arange, torch.zeros, torch.ones, torch.full, torch.empty, torch.tensor, torch.as_tensor)
)
_CPU, _GPU = torch.device("cpu"), torch.device("cuda")
_ONE_CALL = (
    *(torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh),
    *(F.scaled_dot_product_attention, F.rms_norm),
)


@dataclass
class Counts:
    """Launches, synchronisations and allocated memory.

    Attributes:
        launches: Number of launches by phase; the phase of what lies in none is ``other``.
        operators: Number of launches by the name of their operator.
        synchronisations: Number of synchronisations by phase, and by place: file, line and call.
        bytes: Bytes that were allocated, freed ones included.
    """

    launches: collections.Counter = field(default_factory=collections.Counter)
    operators: collections.Counter = field(default_factory=collections.Counter)
    synchronisations: collections.Counter = field(default_factory=collections.Counter)
    bytes: int = 0

    def waits(self, phase: Optional[str] = None, *, ours: bool = False) -> dict[str, int]:
        """Return the number of synchronisations at each place, of one phase or of all.

        With ``ours``, places outside of this package are left out.
        """
        found: collections.Counter = collections.Counter()
        for (of_phase, place), number in self.synchronisations.items():
            if phase in (None, of_phase) and (not ours or place.startswith("fairseq_mm/")):
                found[place] += number
        return dict(found)

    def divided(self, number: int) -> "Counts":
        """Return the mean of ``number`` equal parts."""
        return self._combined(lambda count: round(count / number, 2))

    def extrapolated(self, first: "Counts", more: int) -> "Counts":
        """Return ``first`` and ``more`` times what this has beyond ``first``."""
        if self is first:
            return self
        return first._combined(lambda before, now: before + more * (now - before), self)

    def _combined(self, function: Callable[..., Any], *others: "Counts") -> "Counts":
        parts = (self, *others)
        result = Counts(bytes=int(function(*(x.bytes for x in parts))))
        for name in ("launches", "operators", "synchronisations"):
            counters = [getattr(x, name) for x in parts]
            for key in set().union(*counters):
                getattr(result, name)[key] = function(*(x[key] for x in counters))
        return result


@contextlib.contextmanager
def counted() -> Iterator[Counts]:
    """Count what the block does; the counts are complete at its end.

    In the block, tensors say that they are on a GPU, so that functions choose the GPU's algorithms.
    """
    counts = Counts()
    watch = _Watch(counts)
    with (
        torch.autograd.profiler.profile(profile_memory=True, use_kineto=True) as profiler,
        _watched_backward(watch),
        watch,
    ):
        yield counts
    for event in profiler.function_events:
        if event.cpu_parent is None:
            _add(counts, event, "other")
    for event in profiler.kineto_results.events():
        if event.name() == "[memory]" and event.nbytes() > 0:
            counts.bytes += event.nbytes()


@contextlib.contextmanager
def _watched_backward(watch: "_Watch") -> Iterator[None]:
    """Let the package's functions be watched in the backward pass, where no mode is active."""

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            is_active = torch._C._len_torch_function_stack() > 0
            with contextlib.nullcontext() if is_active else watch:
                return function(*args, **kwargs)

        return call

    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(watched(function), *args, **kwargs)

    with contextlib.ExitStack() as patches:
        for cls in torch.autograd.Function.__subclasses__():
            if cls.__module__.startswith("fairseq_mm."):
                backward = staticmethod(watched(cls.backward))
                patches.enter_context(unittest.mock.patch.object(cls, "backward", backward))
        patches.enter_context(
            unittest.mock.patch.object(multi_scale_self_attention, "checkpoint", checkpoint)
        )
        yield


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Name what the block does."""
    before, _Watch.phase = _Watch.phase, name
    try:
        with record_function(_PHASE + name):
            yield
    finally:
        _Watch.phase = before


def _add(counts: Counts, event: Any, name: str) -> bool:
    """Add the launches of an event and of its children; return True if there was one."""
    if event.name.startswith(_PHASE):
        name = event.name[len(_PHASE) :]
    elif event.name == _HOST:
        return False
    elif event.name.startswith(_ONE) or event.name in _ATOMIC:
        counts.launches[name] += 1
        counts.operators[event.name] += 1
        return True
    elif event.name.startswith("aten::_foreach_"):
        number = math.ceil(max(1, len(event.cpu_children)) / _TENSORS_PER_LAUNCH)
        counts.launches[name] += number
        counts.operators[event.name] += number
        return True
    has_launched = False
    for child in event.cpu_children:
        has_launched = _add(counts, child, name) or has_launched
    if not has_launched and event.name.startswith("aten::") and event.name not in _FREE:
        counts.launches[name] += 1
        counts.operators[event.name] += 1
        return True
    return has_launched


class _Watch(TorchFunctionMode):
    """Mode that records synchronisations, and runs as one what a GPU computes by one call."""

    phase = "other"

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Optional[dict] = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        leaves, spec = tree_flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        is_host = bool(tensors) and all(map(_is_on_cpu, tensors))
        if func == Tensor.device.__get__:
            return _CPU if is_host else _GPU
        if func == Tensor.is_cuda.__get__:
            return not is_host
        devices = [x for x in (*args[1:], *kwargs.values()) if isinstance(x, (str, torch.device))]
        to_gpu = any(x == _GPU for x in devices)
        if to_gpu:
            leaves = [_CPU if isinstance(x, torch.device) else x for x in leaves]
            args, kwargs = tree_unflatten(leaves, spec)
        if func in _FACTORIES:
            if func is torch.tensor and to_gpu:
                self._wait("torch.tensor")
            if to_gpu:
                return func(*args, **kwargs)
            with record_function(_HOST):
                return _on_cpu(func(*args, **kwargs))
        if is_host and to_gpu:
            if not kwargs.get("non_blocking"):
                self._wait("copy from the CPU")
            with record_function(_ONE):
                return _alias(args[0])
        if is_host:
            with record_function(_HOST):
                return _on_cpu(func(*args, **kwargs))
        moves = name in ("cpu", "numpy") or (name == "to" and devices and not to_gpu)
        if tensors and (moves or name in _READS or _depends_on_mask(name, args)):
            self._wait("indexing by a mask" if name in _INDEXING else name)
            result = func(*args, **kwargs)
            return _on_cpu(_alias(result)) if moves and isinstance(result, Tensor) else result
        if name == "_pack_padded_sequence":
            packed, sizes = func(*args, **kwargs)
            return packed, _on_cpu(sizes)
        return _as_on_gpu(func, args, kwargs)

    def _wait(self, call: str) -> None:
        self.counts.synchronisations[self.phase, f"{_place()} {call}"] += 1


def _is_on_cpu(x: Tensor) -> bool:
    return getattr(x, "_on_cpu", False)


def _alias(x: Tensor) -> Tensor:
    """Return a new tensor with the same values, which is on no device yet."""
    return x.detach().view(x.shape)


def _on_cpu(result: Any) -> Any:
    """Mark the tensors of a result as tensors on the CPU, and return the result."""
    for x in tree_flatten(result)[0]:
        if isinstance(x, Tensor):
            x._on_cpu = True
    return result


def _depends_on_mask(name: str, args: tuple) -> bool:
    """Return True if an index is a mask, so that the number of elements must be read."""
    if name not in _INDEXING:
        return False
    # a scalar is written by masked_fill_, whatever the number of elements
    if name == "__setitem__" and not (isinstance(args[2], Tensor) and args[2].dim()):
        return False
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(isinstance(x, Tensor) and x.dtype == torch.bool and x.dim() for x in index)


def _place() -> str:
    """Return file and line of the innermost frame in this package, or else in fairseq."""
    folders = {
        name: str(Path(module.__file__).parent)
        for name, module in (("fairseq_mm", fairseq_mm), ("fairseq", fairseq))
        if module.__file__
    }
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        for name, folder in folders.items():
            if file.startswith(folder + "/"):
                return f"{name}{file[len(folder) :]}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


def _as_on_gpu(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a function; if it is one call on a GPU, let it be one launch."""
    if func is F.dropout:
        return _dropout(*args, **kwargs)
    if func in _ONE_CALL:
        leaves, spec = tree_flatten((args, kwargs))
        places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor)]

        def run(*tensors: Tensor) -> Any:
            for i, x in zip(places, tensors):
                leaves[i] = x
            args, kwargs = tree_unflatten(leaves, spec)
            return func(*args, **kwargs)

        return _AsOne.apply(run, *(leaves[i] for i in places))
    return func(*args, **kwargs)


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(x, p, True)[0] if training and p else x


class _AsOne(torch.autograd.Function):
    """Function that is one launch, and another one in the backward pass."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], *tensors: Tensor) -> Any:
        ctx.inputs = [x.detach().requires_grad_(x.requires_grad) for x in tensors]
        with record_function(_ONE), torch.enable_grad():
            result = run(*ctx.inputs)
        ctx.outputs = result if isinstance(result, tuple) else (result,)
        detached = tuple(x.detach() for x in ctx.outputs)
        return detached if isinstance(result, tuple) else detached[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Optional[Tensor], ...]:
        needs = [x for x in ctx.inputs if x.requires_grad]
        pairs = [(x, g) for x, g in zip(ctx.outputs, gradients) if x.requires_grad]
        with record_function(_ONE):
            outputs, with_respect_to = zip(*pairs)
            found = iter(torch.autograd.grad(outputs, needs, with_respect_to, allow_unused=True))
        return (None, *(next(found) if x.requires_grad else None for x in ctx.inputs))
