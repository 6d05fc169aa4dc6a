"""The words before a word, at all places at once: context of log-bilinear models."""

import torch
from torch import Tensor, nn

from fairseq_mm.modules.linear import linear


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
