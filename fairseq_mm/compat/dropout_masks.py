"""Draws the dropout masks of CPUs faster.

PyTorch draws the mask of a dropout on a CPU with Intel's MKL if the CPU is made by Intel, and on
other CPUs value by value, two 32-bit random numbers each. On an AMD CPU, this took 44 % of the time
of training ``transformer_captioner``.
"""

from pathlib import Path
from typing import Any, Optional

import torch
from torch import Tensor

# PyTorch uses an operator of a library as long as the library exists
_library: Optional[Any] = None


def draw_in_words() -> bool:
    """Let PyTorch draw the random masks of all dropouts on the CPU from 16 bits per value.

    The probability of a value is rounded to a multiple of 1/65536. The same seed gives other masks
    than PyTorch's own operator. Nothing is changed on CPUs made by Intel, or if PyTorch is too old
    to put its own operator back.

    Returns:
        True if the operator was replaced, now or by an earlier call.
    """
    global _library
    if _library is None and can_replace() and not _is_intel():
        _library = torch.library.Library("aten", "IMPL")
        _library.impl("bernoulli_.float", _bernoulli, "CPU")
    return _library is not None


def draw_as_pytorch() -> None:
    """Put PyTorch's own operator back."""
    global _library
    if _library is not None:
        _library._destroy()
        _library = None


def can_replace() -> bool:
    """Return True if this PyTorch can replace an operator and put its own back."""
    return hasattr(torch, "library") and hasattr(torch.library.Library, "_destroy")


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return False


def _bernoulli(
    self: Tensor, p: float = 0.5, *, generator: Optional[torch.Generator] = None
) -> Tensor:
    """Fill ``self`` with 1 with probability ``p``, else with 0, and return it."""
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    threshold = round(p * 65536) - 32768
    if threshold > 32767:
        return self.fill_(1)
    count = self.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    numbers = words.view(torch.int16)[:count].view(self.shape)
    if self.is_contiguous():
        return torch.lt(numbers, threshold, out=self)
    return self.copy_(numbers < threshold)
