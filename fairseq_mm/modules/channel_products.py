"""Matrix products of channels-first maps and of single rows, each by the kernel that suits it.

The convolutional systems keep their hidden states channels first, ``[B, C, T]``. A product over the
channels is then a convolution of width one. In float32 on a CPU, PyTorch gives convolutions to
oneDNN and matrix products to MKL, which on AMD's processors is half as fast; elsewhere a matrix
product is the faster of the two. When decoding, a product of few rows only reads its weights, and
which of the two sides is transposed decides at what speed.
"""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

# of a kernel of width one it changes nothing, but PyTorch leaves plain ones to a slower convolution
# where there is a single thread
_DILATION = 2
# numbers in a single map up to which PyTorch takes the slower convolution anyway
_SMALL = 20480
# rows below which a product is bound by reading the weights rather than by arithmetic
_FEW_ROWS = 16


def _prefers_convolution(x: Tensor) -> bool:
    return x.device.type == "cpu" and (x.size(0) > 1 or x.numel() > _SMALL)


def channel_product(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """
    Args:
        x: ``[B, I, T]``.
        weight: ``[O, I]``.
        bias: ``[O]``.

    Returns:
        ``[B, O, T]``: at each time ``weight x + bias``.
    """
    if _prefers_convolution(x):
        return F.conv1d(x, weight.unsqueeze(-1), bias, dilation=_DILATION)
    product = torch.matmul(weight, x)
    return product if bias is None else product + bias.unsqueeze(-1)


def grouped_product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Products of G groups of channels, each with its own weights.

    Args:
        x: ``[B, G I, T]``.
        weight: ``[G, O, I]``.
        bias: ``[G, O]``.

    Returns:
        ``[B, G O, T]``.
    """
    G, O, I = weight.shape  # noqa: E741
    if _prefers_convolution(x):
        kernel = weight.reshape(G * O, I, 1)
        return F.conv1d(x, kernel, bias.flatten(), groups=G, dilation=_DILATION)
    B, _, T = x.shape
    product = torch.matmul(weight, x.view(B, G, I, T)) + bias.unsqueeze(-1)  # [B, G, O, T]
    return product.view(B, G * O, T)


def row_product(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """
    Args:
        x: ``[B, I]``, of a decoding step.
        weight: ``[O, I]``.
        bias: ``[O]``.

    Returns:
        ``[B, O]``, contiguous.
    """
    if (
        x.device.type != "cpu"
        or x.dtype != torch.float32
        or not 1 < x.size(0) < _FEW_ROWS
        or torch.is_grad_enabled()
    ):
        return F.linear(x, weight, bias)
    product = weight @ x.t()  # four times as fast as x @ weight.t() for four rows
    rows = x.new_empty(x.size(0), weight.size(0))
    return rows.copy_(product.t()) if bias is None else torch.add(product.t(), bias, out=rows)


def grouped_row_product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """:func:`grouped_product` of a decoding step.

    Args:
        x: ``[G, B, I]``.
        weight: ``[G, O, I]``.
        bias: ``[G, O]``.

    Returns:
        ``[G, B, O]``.
    """
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
