"""Comparison of float32 results that every processor rounds in its own way."""

from typing import Any, Optional

import numpy as np
import torch

#: Roundings by which two computations of the same number may differ. Instruction sets and numbers
#: of threads add the same terms in other orders; the sums of the small models here then differ by
#: up to 25 roundings of their largest value (measured with SSE4.1, AVX2, AVX-512 and an AMD
#: processor). A wrong mask, position, scale or weight changes a result by thousands of roundings.
ROUNDINGS = 256


def assert_close(
    found: Any,
    expected: Any,
    *,
    scale: Optional[float] = None,
    roundings: float = ROUNDINGS,
    msg: Optional[str] = None,
) -> None:
    """Assert that two float32 results differ by roundings only.

    A rounding error grows with the numbers that are added, not with their sum: log-probabilities
    near 0 are differences of logits. The tolerance of all elements is therefore
    ``roundings * 2**-23 * scale``.

    Args:
        found: Tensor, array, number or sequence of numbers, computed in float32.
        expected: The same of equal shape, or one number for all elements.
        scale: Size of the numbers that are added (default: the largest finite expected one, and at
            least 1, the size of normalised hidden states).
        roundings: Allowed difference, in roundings of a number of size ``scale``.
        msg: Message of a failure.
    """
    __tracebackhide__ = True
    if isinstance(found, torch.Tensor) and isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
    found, expected = _as_double(found), _as_double(expected)
    if scale is None:
        finite = expected[expected.isfinite()]
        scale = max(1.0, finite.abs().max().item() if finite.numel() else 0.0)
    tolerance = roundings * torch.finfo(torch.float32).eps * scale
    if expected.dim() == 0:
        expected = expected.expand_as(found)
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0, msg=msg)


def _as_double(values: Any) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values.detach().double()
    return torch.from_numpy(np.asarray(values, dtype=np.float64))
