"""Works around defects of PyTorch."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any


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
