"""Weights of linear maps, packed once for the products of oneDNN on a CPU.

A product with few vectors, as in a decoding step, spends most of its time reading the weights. Kept
in oneDNN's own layout they are read in order. On an Intel Xeon, products of 4 to 40 vectors are 1.3
to 2.4 times as fast as MKL's; on AMD processors MKL is slower still. The packed copy takes as much
memory as the weight.

Only models that generate are packed, see :func:`pack_weights`. A weight that changes afterwards is
packed anew.
"""

import weakref
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Elements of the smallest weight that is packed: the cache holds smaller ones, and MKL is faster.
_MIN_ELEMENTS = 1 << 17


class _Packed:
    """Copy of a weight in oneDNN's layout, made at the first product."""

    def __init__(self, weight: Tensor) -> None:
        key = id(weight)
        self.weight = weakref.ref(weight, lambda _: _registry.pop(key, None))
        self._state: Optional[tuple[int, int]] = None
        self._copy: Optional[Tensor] = None

    def copy(self, num_rows: int) -> Tensor:
        """Return the copy of the present weight; it suits products of ``num_rows`` vectors best."""
        weight = self.weight()
        assert weight is not None  # the caller holds it
        # The counter of in-place changes, and the memory, which `weight.data = ...` replaces.
        state = weight._version, weight.data_ptr()
        if state != self._state or self._copy is None:
            self._copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), num_rows)
            self._state = state
        return self._copy


# id of a weight -> its copy; the entry goes with the weight
_registry: dict[int, _Packed] = {}


class _Forward:
    """Replacement of the method ``forward`` of a linear layer."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer

    def __call__(self, input: Tensor) -> Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        out = packed_linear(input, weight, bias)
        return F.linear(input, weight, bias) if out is None else out


def can_pack() -> bool:
    """Return whether the installed PyTorch packs weights on this machine."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in names
    )


def pack_weights(model: nn.Module) -> None:
    """Let the linear maps of a model that generates use packed weights.

    This applies to the linear layers of the model and to :func:`.linear`, for weights in float32 on
    a CPU while no gradients are computed. Results differ from unpacked weights by rounding.

    Args:
        model: Model in evaluation mode.
    """
    if not can_pack():
        return
    for module in model.modules():
        weights: list[Tensor] = list(module.parameters(recurse=False))
        folded = getattr(module, "folded", None)
        if isinstance(folded, Tensor):
            weights.append(folded)
        for weight in weights:
            is_packable = (
                weight.dim() == 2
                and weight.dtype == torch.float32
                and weight.device.type == "cpu"
                and weight.numel() >= _MIN_ELEMENTS
                and not weight.is_inference()
            )
            if is_packable and id(weight) not in _registry:
                _registry[id(weight)] = _Packed(weight)
        # Subclasses have methods of their own.
        if type(module) is nn.Linear:
            layer: Any = module
            layer.forward = _Forward(module)


def packed_linear(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Optional[Tensor]:
    """Compute ``weight x + bias`` with a packed weight: [..., inputs] -> [..., outputs].

    Returns None if the weight is not packed, or packing does not pay; the caller then computes the
    product itself.
    """
    packed = _registry.get(id(weight))
    if (
        packed is None
        or torch.is_grad_enabled()
        or x.dtype != torch.float32
        or x.device.type != "cpu"
        or weight.dtype != torch.float32
        or torch.is_autocast_cpu_enabled()
    ):
        return None
    num_rows = x.numel() // x.size(-1)
    # MKL reads the weight of a single vector as fast
    if num_rows < 2:
        return None
    copy = packed.copy(num_rows)
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), copy, bias, "none", [], "")
