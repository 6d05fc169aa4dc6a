"""Works around defects of PyTorch."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Callable, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@functools.cache
def convolution_memory_format() -> Any:
    """Return the memory format for convolutions: ``torch.channels_last`` where it is correct.

    PyTorch 1.12 computes wrong results with it, and gets ``torch.contiguous_format``. A small
    convolution tests the installed version.
    """
    import torch

    # in PyTorch 1.12, a channels-last 3 x 3 convolution of a single 1 x 1 map on a CPU mixes up the
    # channels, so that the features of an image depend on its batch
    weight = torch.arange(2 * 3 * 3 * 3, dtype=torch.float32).view(2, 3, 3, 3)
    maps = torch.tensor([1.0, 2, 3]).view(1, 3, 1, 1)
    output = torch.conv2d(maps, weight.contiguous(memory_format=torch.channels_last), padding=1)
    is_right = torch.allclose(output.flatten(), weight[:, :, 1, 1] @ maps.flatten())
    return torch.channels_last if is_right else torch.contiguous_format


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error says that a device, or the machine, has too little memory."""
    # Older versions of PyTorch raise a RuntimeError for a GPU, and all versions do for a CPU.
    said = ("out of memory", "not enough memory", "can't allocate memory", "bad_alloc")
    text = str(error)
    # oneDNN says no more than this; the longer text of an operation that it lacks is another.
    is_said = text == "could not create a primitive" or any(part in text for part in said)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_said)


def multiplies_float16_on_cpu() -> bool:
    import torch

    one = torch.ones(1, 1, dtype=torch.float16)
    try:
        torch.mm(one, one)
    except RuntimeError:
        return False
    return True


def float32_by_default(function: Function) -> Function:
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

    return run  # type: ignore[return-value]


@contextlib.contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Keep PyTorch from computing attention on GPUs by cuDNN in a ``with`` block.

    cuDNN makes a new plan for each new number of keys. A decoding step has one key more than the
    step before, and making the plan takes longer than the step's attention.
    """
    import torch

    backends = torch.backends.cuda
    if not torch.cuda.is_initialized() or not hasattr(backends, "enable_cudnn_sdp"):
        yield
        return
    before = backends.cudnn_sdp_enabled()
    backends.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        backends.enable_cudnn_sdp(before)
