"""Packs the weights of linear maps once for oneDNN's matrix products on a CPU.

A product with few vectors, as in a decoding step, spends most of its time reading the weights. In
oneDNN's own layout, weights are read in order, and in bfloat16 or int8 there are fewer bytes to
read. On an Intel Xeon, float32 products of 8 to 40 vectors are 1.1 to 2.4 times as fast as MKL's.
The model keeps both the weight and its packed copy.

In int8, each row of a weight has its own scale, and so has each vector, whose scale is computed at
each product. The result of a vector therefore does not depend on the other vectors of its batch.
The integers of a vector are stored as uint8.

Only models that are not trained any more are packed, see :func:`pack_weights`: fairseq's optimizers
change weights through ``weight.data``, which PyTorch does not count as a change. After changes that
PyTorch counts, a weight is packed anew.
"""

import functools
import weakref
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_mm.errors import UserError

# Elements of the smallest weight that is packed: the cache holds smaller ones, and MKL is faster.
_MIN_ELEMENTS = 1 << 17
_LARGEST_INT8 = 127
# uint8 of a vector's element that is 0
_ZERO_POINT = 128
_ZERO_AND_HALF = torch.tensor(_ZERO_POINT + 0.5, dtype=torch.float32)
# Divisor of a vector of zeros, which would be divided by zero.
_SMALLEST_SCALE = 1e-30


class _Packed:
    """Copy of a linear map's weight in oneDNN's layout, which is created at the first product."""

    def __init__(self, weight: Tensor, dtype: str) -> None:
        key = id(weight)
        self.weight = weakref.ref(weight, lambda _: _registry.pop(key, None))
        self.dtype = dtype
        self._state: Optional[tuple[int, int]] = None
        self._copy: Any = None
        self._scales: Any = None
        self._zeros: Any = None

    def multiply(self, rows: Tensor, bias: Optional[Tensor]) -> Tensor:
        weight = self.weight()
        assert weight is not None  # the caller holds it
        # The counter of in-place changes, and the memory, which `weight.data = ...` replaces.
        state = weight._version, weight.data_ptr()
        if state != self._state:
            self._pack(weight.detach(), rows.numel() // rows.size(-1))
            self._state = state
        if self.dtype == "float32":
            return torch.ops.mkldnn._linear_pointwise(rows, self._copy, bias, "none", [], "")
        if self.dtype == "bfloat16":
            half = rows.bfloat16()
            out = torch.ops.mkldnn._linear_pointwise(half, self._copy, None, "none", [], "").float()
            return out if bias is None else out.add_(bias)
        largest = rows.abs().amax(dim=-1, keepdim=True).clamp_(min=_SMALLEST_SCALE)
        # The conversion to integers cuts off, which after adding a half means to round.
        integers = torch.addcmul(_ZERO_AND_HALF, rows, _LARGEST_INT8 / largest).to(torch.uint8)
        out = _multiply_integers(integers, 1 / _LARGEST_INT8, self._copy, self._scales, self._zeros)
        return out.mul_(largest) if bias is None else torch.addcmul(bias, out, largest)

    def _pack(self, weight: Tensor, num_rows: int) -> None:
        if self.dtype == "int8":
            largest = weight.abs().amax(dim=1).clamp_(min=_SMALLEST_SCALE)
            self._scales = largest / _LARGEST_INT8
            self._zeros = torch.zeros(len(weight), dtype=torch.long)
            integers = (weight / self._scales.unsqueeze(1)).round_().to(torch.int8)
            self._copy = torch.ops.onednn.qlinear_prepack(integers, None)
            return
        weight = weight.to(getattr(torch, self.dtype))
        self._copy = torch.ops.mkldnn._reorder_linear_weight(weight, num_rows)


def _multiply_integers(
    rows: Tensor, scale: float, packed: Tensor, scales: Tensor, zeros: Tensor
) -> Tensor:
    """Multiply vectors [..., inputs] uint8 by a packed weight in int8."""
    return torch.ops.onednn.qlinear_pointwise(
        *(rows, scale, _ZERO_POINT),
        *(packed, scales, zeros),
        *(None, 1.0, 0, torch.float32, "none", [], ""),
    )


@functools.cache
def _multiplies_integers_exactly() -> bool:
    """Return True if this processor computes sums of products of integers exactly."""
    packed = torch.ops.onednn.qlinear_prepack(torch.full((64, 64), 127, dtype=torch.int8), None)
    rows = torch.full((1, 64), 255, dtype=torch.uint8)
    zeros = torch.zeros(64, dtype=torch.long)
    sums = _multiply_integers(rows, 1.0, packed, torch.ones(64), zeros)
    return bool((sums == 64 * 127 * (255 - _ZERO_POINT)).all())


def is_autocast_on_cpu() -> bool:
    # A step of a story calls this 60 times; is_autocast_cpu_enabled takes four times as long.
    return torch.is_autocast_enabled("cpu")


# id of a weight -> its copy; the entry goes with the weight
_registry: dict[int, _Packed] = {}


class _Forward:
    """Method ``forward`` of a linear layer that uses :func:`packed_linear`."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer

    def __call__(self, input: Tensor) -> Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        out = packed_linear(input, weight, bias)
        return F.linear(input, weight, bias) if out is None else out


def can_pack(dtype: str = "float32") -> bool:
    """Return True if PyTorch can pack weights of a dtype for oneDNN on this machine."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == "bfloat16":
        # a processor with AVX-512 or avx_ne_convert
        is_supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
        return is_supported is None or bool(is_supported())
    has_int8 = hasattr(torch.ops.onednn, "qlinear_pointwise")
    return dtype != "int8" or (has_int8 and _multiplies_integers_exactly())


def pack_weights(model: nn.Module, dtype: str = "float32") -> None:
    """Let the linear maps of a model that generates, and is not trained afterwards, use packed
    weights.

    This applies to linear layers and to :func:`fairseq_mm.modules.linear.linear`, for float32
    weights on a CPU while no gradients are computed. ``dtype`` is ``float32``, with which results
    differ by rounding, ``bfloat16`` or ``int8``.
    """
    if dtype != "float32":
        devices = {weight.device.type for weight in model.parameters()} - {"cpu"}
        if devices or not can_pack(dtype):
            processors = {"bfloat16": "AVX-512 or avx_ne_convert", "int8": "VNNI or AMX"}
            raise UserError(
                f"`weights_dtype` {dtype} needs PyTorch with oneDNN, a processor with "
                f"{processors[dtype]}, and the device cpu."
            )
    elif not can_pack():
        return
    for module in model.modules():
        weights: list[Tensor] = list(module.parameters(recurse=False))
        # Weights that `fold` of a module computed for inference are plain attributes.
        weights += [value for value in vars(module).values() if isinstance(value, Tensor)]
        for weight in weights:
            if (
                weight.dim() != 2
                or weight.dtype != torch.float32
                or weight.device.type != "cpu"
                or weight.numel() < _MIN_ELEMENTS
                or weight.is_inference()
            ):
                continue
            packed = _registry.get(id(weight))
            if packed is None or packed.dtype != dtype:
                _registry[id(weight)] = _Packed(weight, dtype)
        # Subclasses have methods of their own.
        if type(module) is nn.Linear and id(module.weight) in _registry:
            layer: Any = module
            layer.forward = _Forward(module)


@functools.cache
def _multiplies_bfloat16() -> bool:
    """Return True if this processor has instructions for products in bfloat16."""
    is_supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return is_supported is not None and bool(is_supported())


def shrink_cached(x: Tensor, weight: Tensor) -> Tensor:
    """Convert keys or values x to the dtype in which a decoder caches them.

    It is bfloat16 if their matrix ``weight`` is packed in bfloat16 or int8, and the processor has
    instructions for bfloat16. In BART in int8, attention to float32 keys and values took 31 % of
    the time, and bfloat16 halves this.
    """
    packed = _registry.get(id(weight))
    if (
        packed is None
        or packed.dtype == "float32"
        or not _can_multiply(x, weight)
        or not _multiplies_bfloat16()
    ):
        return x
    return x.bfloat16()


def _can_multiply(x: Tensor, weight: Tensor) -> bool:
    """Return True if products of vectors like x may use the packed copy of ``weight``."""
    return (
        not torch.is_grad_enabled()
        and x.dtype == torch.float32
        and x.is_cpu
        # a model may be cast or moved after its weights were packed
        and weight.dtype == torch.float32
        and weight.is_cpu
        and not is_autocast_on_cpu()
    )


def packed_linear(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Optional[Tensor]:
    """Compute ``weight x + bias`` [..., outputs] of x [..., inputs], with the packed weight.

    Returns None if the weight is not packed or x does not allow it; the caller then computes the
    product itself.
    """
    packed = _registry.get(id(weight))
    if packed is None or not _can_multiply(x, weight):
        return None
    num_rows = x.numel() // x.size(-1)
    # MKL reads the weight for a single vector as fast.
    if num_rows < (2 if packed.dtype == "float32" else 1):
        return None
    return packed.multiply(x.contiguous(), bias)
