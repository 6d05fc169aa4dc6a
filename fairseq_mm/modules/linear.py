"""Linear maps by the kernel that suits them.

In float32 on a CPU, PyTorch gives matrix products to MKL and convolutions to oneDNN, which is twice
as fast on AMD's processors: so a large linear map is a convolution of width one over a
channels-last image. One of few vectors only reads its weights, and which of the two sides is
transposed decides at what speed. Everywhere else a linear map is PyTorch's own.
"""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

# Dilation does not change a kernel of width one, but PyTorch computes convolutions without dilation
# by a slower path if there is a single thread.
_DILATION = 2
# number of elements from which PyTorch uses oneDNN for a single image
_MANY_NUMBERS = 20480
# number of vectors of a decoding step, for which oneDNN would reorder the weights at each call
_STEP_ROWS = 64
# With fewer vectors, reading the weights limits the speed, and not arithmetic. For more vectors,
# transposing pays up to this number of outputs.
_FEW_ROWS = 16
_FEW_OUTPUTS = 8192


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """
    Args:
        x: ``[..., I]``.
        weight: ``[O, I]``.
        bias: ``[O]``.

    Returns:
        ``[..., O]``: ``weight x + bias``, contiguous.
    """
    if not _is_float32_on_cpu(x):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.size(-1))
    is_step = not torch.is_grad_enabled() and rows.size(0) < _STEP_ROWS
    if x.numel() > _MANY_NUMBERS and not is_step:
        # [1, I, 1, rows] with the channels last: only with these strides is nothing copied
        image = rows.unsqueeze(0).transpose(1, 2).unsqueeze(2)
        kernel = weight.unsqueeze(-1).unsqueeze(-1)
        out = F.conv2d(image, kernel, bias, dilation=_DILATION).squeeze(2).transpose(1, 2)[0]
    elif is_step and rows.size(0) > 1 and _is_better_turned(rows.size(0), weight.size(0)):
        # four times as fast as rows @ weight.t() for four rows
        out = (weight @ rows.t()).t()
        if bias is not None:
            out = torch.add(out, bias, out=x.new_empty(out.shape))
    else:
        out = F.linear(rows, weight, bias)
    return out.contiguous().view(*x.shape[:-1], -1)


def grouped_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """G linear maps, each of its own vectors.

    Args:
        x: ``[G, N, I]``.
        weight: ``[G, O, I]``.
        bias: ``[G, O]``.

    Returns:
        ``[G, N, O]``.
    """
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


def _is_better_turned(rows: int, outputs: int) -> bool:
    return rows < _FEW_ROWS or outputs <= _FEW_OUTPUTS


def _is_float32_on_cpu(x: Tensor) -> bool:
    is_plain = x.device.type == "cpu" and x.dtype == torch.float32
    return is_plain and not torch.is_autocast_cpu_enabled()
