"""Limits the memory and the time of building a model by the size of its checkpoint.

The options of a model are read from the same file as its weights. With a wrong or hostile option,
such as ten million layers, building would fill the memory before the weights are compared.
"""

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fairseq_mm.errors import UserError

# initialisation makes temporary tensors, and models have tables that are not saved
_RATIO, _MOST_ELEMENTS, _MOST_CALLS = 10, 1 << 27, 20_000


@contextlib.contextmanager
def limited_by(weights: Mapping[str, Any]) -> Iterator[None]:
    """Context in which no more tensors can be created than a model with these weights needs.

    Args:
        weights: State dict of the model.
    """
    # PyTorch before 1.13 cannot observe its functions
    if not hasattr(torch.overrides, "TorchFunctionMode"):
        yield
        return
    sizes = [x.numel() for x in weights.values() if isinstance(x, torch.Tensor)]
    elements = _RATIO * sum(sizes) + _MOST_ELEMENTS
    with _get_mode()(elements, _RATIO * len(sizes) + _MOST_CALLS):
        yield


@functools.cache
def _get_mode() -> Any:
    """Return the class of the context that counts created tensors.

    The class is defined in this function, because PyTorch 1.12 lacks its base class.
    """
    counted = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}
    counted |= {torch.arange, torch.eye}

    class LimitedCreation(torch.overrides.TorchFunctionMode):
        """Context that counts the created tensors and elements, and raises UserError for too many.

        Args:
            elements: Maximum number of elements.
            calls: Maximum number of tensors.
        """

        def __init__(self, elements: int, calls: int) -> None:
            super().__init__()
            self.elements, self.calls = elements, calls

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function in counted:
                self.elements -= _count_elements(function, args, kwargs or {})
                self.calls -= 1
                if self.elements < 0 or self.calls < 0:
                    raise UserError(
                        "its options describe a model that is far larger than its weights."
                    )
            return function(*args, **(kwargs or {}))

    return LimitedCreation


def _count_elements(function: Any, args: Any, options: Mapping[str, Any]) -> int:
    """Return the number of elements of the tensor that a call of ``function`` would create."""
    shape = args or options.get("size") or ()
    if shape and isinstance(shape[0], (tuple, list)):
        shape = shape[0]
    numbers = [abs(x) for x in shape if isinstance(x, (int, float)) and math.isfinite(x)]
    if function is torch.arange:
        return int(max(numbers, default=0))
    if function is torch.eye and len(numbers) == 1:
        numbers *= 2
    return int(math.prod(numbers))
