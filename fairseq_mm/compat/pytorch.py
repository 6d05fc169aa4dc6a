"""Defects of PyTorch that features and training have to go around."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any


@functools.cache
def convolution_memory_format() -> Any:
    """``torch.channels_last``, where convolutions are right with it.

    In PyTorch 1.12 a channels-last 3 x 3 convolution of a single 1 x 1 map on a CPU mixes channels
    up: an image's features would depend on the batch it is in. Goes with PyTorch 1.12.

    Returns:
        memory_format: for the network's weights and its images.
    """
    import torch

    weight = torch.arange(2 * 3 * 3 * 3, dtype=torch.float32).view(2, 3, 3, 3)
    maps = torch.tensor([1.0, 2, 3]).view(1, 3, 1, 1)
    found = torch.conv2d(maps, weight.contiguous(memory_format=torch.channels_last), padding=1)
    right = torch.allclose(found.flatten(), weight[:, :, 1, 1] @ maps.flatten())
    return torch.channels_last if right else torch.contiguous_format


def multiplies_float16_on_cpu() -> bool:
    import torch

    one = torch.ones(1, 1, dtype=torch.float16)
    try:
        torch.mm(one, one)
    except RuntimeError:
        return False
    return True


@contextlib.contextmanager
def float32_by_default() -> Iterator[None]:
    """Build and run networks in float32, whatever ``torch.set_default_dtype`` says.

    fairseq and torchvision make tensors of the default type where they mean float32: weights that
    are loaded into them, and masks and scores of a search, would have another type than the
    weights. Also a decorator.
    """
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
