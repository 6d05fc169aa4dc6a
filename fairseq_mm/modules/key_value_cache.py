"""Keys and values of the tokens so far, of every layer, in one tensor."""

import torch
from torch import Tensor

from fairseq_mm.modules.sentence_cache import keeps_all

_BLOCK = 16  # positions that are added at a time


class KeyValueCache:
    """Keys and values of all tokens so far; all rows are at the same position.

    Args:
        num_layers: L.
        num_heads: H.
        head_dim: A.
        like: Tensor with the number of rows, dtype and device of the cache.
    """

    def __init__(self, num_layers: int, num_heads: int, head_dim: int, like: Tensor) -> None:
        self._kept = like.new_empty(2 * num_layers, len(like), num_heads, 0, head_dim)
        self.length = 0

    def add_position(self) -> None:
        """Makes place for another token of each row."""
        if self.length == self._kept.size(3):
            *shape, _, head_dim = self._kept.shape
            place = self._kept.new_empty(*shape, _BLOCK, head_dim)
            self._kept = torch.cat([self._kept, place], dim=3)
        self.length += 1

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """
        Args:
            layer: from 0 on.
            key: ``[B, H, 1, A]`` of the newest token.
            value: ``[B, H, 1, A]``.

        Returns:
            keys and values of all tokens, ``[B, H, length, A]`` each.
        """
        keys, values = self._kept[2 * layer], self._kept[2 * layer + 1]
        keys[:, :, self.length - 1] = key[:, :, 0]
        values[:, :, self.length - 1] = value[:, :, 0]
        return keys[:, :, : self.length], values[:, :, : self.length]

    def select(self, order: Tensor) -> None:
        """Rows in a new order."""
        if not keeps_all(order, self._kept.size(1)):
            self._kept = self._kept.index_select(1, order)
