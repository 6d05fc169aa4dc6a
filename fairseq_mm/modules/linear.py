"""Linear maps by the kernel that suits them.

In float32 on a CPU, PyTorch gives matrix products to MKL and convolutions to oneDNN, which is twice
as fast on AMD's processors: so a large linear map is a convolution of width one over a
channels-last image. One of few vectors only reads its weights, and which of the two sides is
transposed decides at what speed. Everywhere else a linear map is PyTorch's own.
"""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


def float32_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """``[..., output]`` float32 of ``[..., input]``, under autocast too."""
    bias = None if layer.bias is None else layer.bias.float()
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.float(), layer.weight.float(), bias)


class WeightNormalized(nn.Module):
    """Matrices ``g v / |v|``, normalised over the inputs of each output, with biases.

    Args:
        shape: Shape of the matrices: ``(O, I)``, or ``(G, O, I)`` for G matrices.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight_v = nn.Parameter(torch.empty(shape))
        self.weight_g = nn.Parameter(torch.empty(*shape[:-1], 1))
        self.bias = nn.Parameter(torch.empty(shape[:-1]))
        self.folded: Optional[Tensor] = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Directions of N(0, 1/I), and lengths that leave them as they are."""
        nn.init.normal_(self.weight_v, std=self.weight_v.size(-1) ** -0.5)
        with torch.no_grad():
            self.weight_g.copy_(self.weight_v.norm(dim=-1, keepdim=True))
        nn.init.zeros_(self.bias)

    def weight(self) -> Tensor:
        """The matrices, in the parameters' precision; norms are taken in float32."""
        if self.folded is not None:
            return self.folded
        direction = self.weight_v.float()
        scale = self.weight_g.float() / direction.norm(dim=-1, keepdim=True)
        return (direction * scale).to(self.weight_v.dtype)

    def fold(self) -> None:
        """Computes the matrices once: for inference, after which no training may follow."""
        self.folded = None
        with torch.no_grad():
            self.folded = self.weight()

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "WeightNormalized":
        super()._apply(fn, *args, **kwargs)
        if self.folded is not None:
            self.folded = fn(self.folded)
        return self


class ContextWindow(nn.Module):
    """``sum_i C^(i) x_i`` over the windows of a sequence: a linear map of L neighbours.

    Args:
        length: L of a window.
        input_dim: I of each of its members.
        output_dim: O.

    Attributes:
        weight: ``[O, L * I]``: the matrices C^(1) ... C^(L), side by side.
    """

    def __init__(self, length: int, input_dim: int, output_dim: int) -> None:
        super().__init__()
        self.length = length
        self.weight = nn.Parameter(torch.empty(output_dim, length * input_dim))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """
        Args:
            x: ``[B, T + L - 1, I]``.

        Returns:
            ``[B, T, O]``, of the windows that begin at each of the first T members.
        """
        T = x.size(1) - self.length + 1
        windows = torch.cat([x[:, i : i + T] for i in range(self.length)], dim=2)  # [B, T, L * I]
        return linear(windows, self.weight)

    def of_table(self, table: Tensor) -> Tensor:
        """Precompute the output of each type at each place of a window.

        Args:
            table: [V, I] vectors of the types.

        Returns:
            [L, V, O]: :meth:`forward` equals the sum of the rows of a window's members.
        """
        matrices = self.weight.view(self.weight.size(0), self.length, -1)  # [O, L, I]
        return torch.matmul(table, matrices.permute(1, 2, 0))
