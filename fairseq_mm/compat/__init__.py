"""Contains repairs of fairseq, and all code that depends on versions of fairseq, PyTorch or Python.

:data:`.repairs.REPAIRS` lists the repairs: functions of fairseq that are replaced at run time,
because they have a defect or are not safe, with the reason of each.

Tested with fairseq-fixed 0.12.3.1 on Python 3.11 with PyTorch 2.14. A smoke test runs with stock
fairseq 0.12.2 on Python 3.10 with PyTorch 2.6.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from fairseq_mm.compat import repairs  # noqa: F401  (hands its table to activation)
from fairseq_mm.compat.activation import activate, apply, is_ours, is_user_dir
from fairseq_mm.compat.command_line import check_hydra_recipe
from fairseq_mm.compat.loading import load_torch_file

__all__ = [
    "activate",
    "apply",
    "check_hydra_recipe",
    "is_ours",
    "is_user_dir",
    "load_torch_file",
]


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error says that a device, or the machine, has too little memory."""
    parts = ("out of memory", "not enough memory", "can't allocate memory", "bad_alloc")
    text = str(error)
    # oneDNN says no more than this; the longer text of an operation that it lacks is another.
    is_said = text == "could not create a primitive" or any(part in text for part in parts)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_said)


def float32_by_default(function: Any) -> Any:
    """Decorate a function so that float32 is PyTorch's default dtype while the function runs."""

    # fairseq and torchvision create tensors of the default type where they need float32: with
    # another default, masks and scores of a search would not have the type of the weights
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        import torch

        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_default_dtype(before)

    return run


@contextlib.contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Keep PyTorch from computing attention on GPUs by cuDNN in a ``with`` block.

    cuDNN makes a new plan for each new number of keys. A decoding step has one key more than the
    step before, and making the plan takes longer than the step's attention.
    """
    import torch

    backends = torch.backends.cuda
    if not torch.cuda.is_initialized():
        yield
        return
    before = backends.cudnn_sdp_enabled()
    backends.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        backends.enable_cudnn_sdp(before)
