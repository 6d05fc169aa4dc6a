"""Defects of PyTorch that features and training have to go around."""

import functools
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
