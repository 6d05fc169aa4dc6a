"""Computes linear maps by the fastest kernel of the device.

In float32 on a CPU, PyTorch computes matrix products with MKL and convolutions with oneDNN. On AMD
processors, oneDNN is twice as fast as MKL, so a large linear map is computed as a convolution of
width one over a channels-last image. For few vectors, reading the weights takes most of the time,
and the speed depends on which factor of the product is transposed. On other devices and in other
precisions, ``F.linear`` is used.
"""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_mm.modules.packed_weights import is_autocast_on_cpu, packed_linear

# Dilation does not change a kernel of width one, but PyTorch computes convolutions without dilation
# by a slower path if there is a single thread.
_DILATION = 2
# PyTorch uses oneDNN for a single image with more elements than this
_MANY_NUMBERS = 20480
# With fewer multiplications, a convolution costs more than it gains: for 640 vectors and 64 x 64
# weights, its forward and backward pass take .3 ms longer than with F.linear.
_MANY_PRODUCTS = 2**24
# Without gradients, fewer vectors than this are a decoding step. oneDNN would reorder the weights
# at each call, which costs more than it gains for so few vectors.
_STEP_ROWS = 64
# With fewer vectors, reading the weights limits the speed, and not arithmetic. With more vectors,
# transposing is faster up to this number of outputs.
_FEW_ROWS = 16
_FEW_OUTPUTS = 8192


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """Compute ``weight x + bias``: [..., inputs] -> [..., outputs].

    ``weight`` is [outputs, inputs]. The result is contiguous.
    """
    out = packed_linear(x, weight, bias)
    if out is not None:
        return out
    if not x.is_cpu or x.dtype != torch.float32 or is_autocast_on_cpu():
        if bias is None or x.dim() == 2 or x.is_contiguous():
            return F.linear(x, weight, bias)
        # F.linear adds the bias in a second operation if x is strided and has 3 or more dimensions.
        return F.linear(x.reshape(-1, x.size(-1)), weight, bias).view(*x.shape[:-1], len(weight))
    rows = x.reshape(-1, x.size(-1))
    is_step = not torch.is_grad_enabled() and rows.size(0) < _STEP_ROWS
    is_large = x.numel() > _MANY_NUMBERS and x.numel() * len(weight) >= _MANY_PRODUCTS
    if is_large and not is_step:
        # [1, I, 1, rows] with the channels last; with other strides, oneDNN would copy the input
        image = rows.unsqueeze(0).transpose(1, 2).unsqueeze(2)
        kernel = weight.unsqueeze(-1).unsqueeze(-1)
        out = F.conv2d(image, kernel, bias, dilation=_DILATION).squeeze(2).transpose(1, 2)[0]
    elif is_step and len(rows) > 1 and (len(rows) < _FEW_ROWS or len(weight) <= _FEW_OUTPUTS):
        # four times as fast as rows @ weight.t() for four rows
        out = (weight @ rows.t()).t()
        if bias is not None:
            out = torch.add(out, bias, out=x.new_empty(out.shape))
    else:
        out = F.linear(rows, weight, bias)
    return out.contiguous().view(*x.shape[:-1], len(weight))


def normal_linear(input_dim: int, output_dim: int, std: float) -> nn.Linear:
    """Build a linear layer with weights from N(0, std^2) and zero bias."""
    layer = nn.Linear(input_dim, output_dim)
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return layer


def grouped_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply G maps ``weight`` [G, outputs, inputs]: [G, N, inputs] -> [G, N, outputs]."""
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


def float32_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Compute a linear layer in float32, even under autocast."""
    bias = None if layer.bias is None else layer.bias.float()
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.float(), layer.weight.float(), bias)


class WeightNormalized(nn.Module):
    """Weight-normalised matrices with biases: each row is ``g v / |v|``.

    Salimans, Kingma. Weight normalization. NIPS 2016. https://arxiv.org/abs/1602.07868, equation 2.
    ``shape`` is ``(outputs, inputs)``, or ``(count, outputs, inputs)`` for several matrices.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight_v = nn.Parameter(torch.empty(shape))
        self.weight_g = nn.Parameter(torch.empty(*shape[:-1], 1))
        self.bias = nn.Parameter(torch.empty(shape[:-1]))
        # Not a buffer, so that folding adds no key to the state dict.
        self.folded: Optional[Tensor] = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sample normally distributed matrices with variance ``1 / inputs``; zero the biases."""
        nn.init.normal_(self.weight_v, std=self.weight_v.size(-1) ** -0.5)
        with torch.no_grad():
            self.weight_g.copy_(self.weight_v.norm(dim=-1, keepdim=True))
        nn.init.zeros_(self.bias)

    def weight(self) -> Tensor:
        return normalized(self.weight_v, self.weight_g) if self.folded is None else self.folded

    def fold(self) -> None:
        """Compute the matrices once and store them; for inference only."""
        self.folded = None
        with torch.no_grad():
            self.folded = self.weight()

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "WeightNormalized":
        # Moving or casting a folded model must include the folded matrix, which is no buffer.
        super()._apply(fn, *args, **kwargs)
        if self.folded is not None:
            self.folded = fn(self.folded)
        return self


def normalized(v: Tensor, g: Tensor) -> Tensor:
    """Return ``g v / |v|`` of directions v [..., inputs] and norms g [..., 1]."""
    # float32, because squares of small weights lose their digits in float16. One operation computes
    # what `v * (g / v.norm(dim=-1))` computes in three, or with gradients in 16.
    normalized = torch._weight_norm(v.float().flatten(0, -2), g.float().flatten(0, -2), 0)
    return normalized.view_as(v).to(v.dtype)


class ContextWindow(nn.Module):
    """Linear map ``sum_i C^(i) x_i`` of the elements x_1, ..., x_length of a window of a sequence.

    ``weight`` [output_dim, length * input_dim] has the matrices C^(1), ..., C^(length) side by
    side.
    """

    def __init__(self, length: int, input_dim: int, output_dim: int) -> None:
        super().__init__()
        self.length = length
        self.weight = nn.Parameter(torch.empty(output_dim, length * input_dim))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map each window of x: [B, T + length - 1, input_dim] -> [B, T, output_dim]."""
        T = x.size(1) - self.length + 1
        windows = torch.cat([x[:, i : i + T] for i in range(self.length)], dim=2)  # [B, T, L * I]
        return linear(windows, self.weight)

    def project_table(self, table: Tensor) -> Tensor:
        """Multiply token vectors [V, input_dim] by the matrix of each position of a window.

        Returns a table [length, V, output_dim]. For a window of tokens t_1, t_2, ..., the sum of
        the entries [0, t_1], [1, t_2], ... equals :meth:`forward`.
        """
        matrices = self.weight.view(self.weight.size(0), self.length, -1)  # [O, L, I]
        return torch.matmul(table, matrices.permute(1, 2, 0))
