"""Encoder output that the beams of an item share during decoding.

fairseq's generator copies the encoder's output for every beam, and again whenever beams are
reordered. Here the output is stored once per item, and each row stores the item that it reads. A
decoding step treats the rows of an item as several queries to one set of keys.
"""

from typing import Any, Optional

import torch
from torch import Tensor, nn

from fairseq_mm.models._bases import EncoderOut

ROWS = "rows"


def reorder_items(encoder_out: EncoderOut, new_order: Tensor, num_items: int) -> EncoderOut:
    """The encoder's output with other rows; its tensors stay, only what each row reads changes.

    Args:
        encoder_out: of ``num_items`` items; its list ``rows`` is empty while rows are items.
        new_order: ``[R]`` rows of before.
        num_items: items of the tensors.
    """
    before = encoder_out[ROWS]
    rows = before[0] if before else torch.arange(num_items, device=new_order.device)
    return {**encoder_out, ROWS: [rows.index_select(0, new_order)]}


class SharedMemory:
    """The text's states and the projected frames of each item, for a decoder's rows.

    The rows of an item lie side by side, ``size`` for each. Where an order has them otherwise, an
    item is copied for each of its rows.

    Args:
        text: ``[S, B, C]`` states.
        text_mask: ``[B, S]`` bool, True at padding.
        projected: layer's number -> tensors ``[B, ...]`` of :meth:`VideoFusion.project`.
        video_mask: ``[B, M]`` or None.
        rows: ``[R]`` the item that each row reads; None: rows are items.

    Attributes:
        size: rows of each item.
    """

    def __init__(
        self,
        text: Tensor,
        text_mask: Tensor,
        projected: dict[str, tuple[Tensor, ...]],
        video_mask: Optional[Tensor],
        rows: Optional[Tensor] = None,
    ) -> None:
        self.text = text
        self.text_mask = text_mask
        self.projected = projected
        self.video_mask = video_mask
        self.size = 1
        if rows is not None:
            self._assign(rows)

    def reorder(self, new_order: Tensor) -> Optional[Tensor]:
        """
        Args:
            new_order: ``[R]`` rows of before.

        Returns:
            items of before that are kept, in order; None where all are, as they were.
        """
        return self._assign(torch.div(new_order, self.size, rounding_mode="floor"))

    def fuse(self, fusion: nn.Module, number: str, x: Tensor, trace: Any = None) -> Tensor:
        """``[R, T, C]`` of words, and of words with what their videos' frames add to them."""
        grouped = x.reshape(-1, self.size * x.size(1), x.size(2))
        fused = fusion(grouped, self.projected[number], self.video_mask, trace)
        return fused.view_as(x)

    def _assign(self, rows: Tensor) -> Optional[Tensor]:
        B = len(self.text_mask)
        items, counts = torch.unique_consecutive(rows, return_counts=True)
        sizes = counts.tolist()
        if len(set(sizes)) == 1:
            self.size = sizes[0]
        else:
            items, self.size = rows, 1
        if len(items) == B and torch.equal(items, torch.arange(B, device=items.device)):
            return None
        self.text = self.text.index_select(1, items)
        self.text_mask = self.text_mask.index_select(0, items)
        self.projected = {
            number: tuple(x.index_select(0, items) for x in parts)
            for number, parts in self.projected.items()
        }
        if self.video_mask is not None:
            self.video_mask = self.video_mask.index_select(0, items)
        return items
