"""Stores the encoder output that the beams of an example share during decoding.

fairseq's generator copies the encoder's output for every beam, and again when beams are reordered.
Here the output is stored once per example (item), and each beam (row) has the index of its item.
"""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_mm.models._bases import EncoderOut
from fairseq_mm.modules.attention import attend, attention_weights, merge_heads, split_heads
from fairseq_mm.modules.decoding_caches import group_rows, select_rows
from fairseq_mm.modules.packed_weights import shrink_cached

ROWS = "rows"


def reorder_items(encoder_out: EncoderOut, new_order: Tensor, num_items: int) -> EncoderOut:
    """Reorder the rows (beams) of an encoder output without copying its large tensors.

    Args:
        encoder_out: Output for the items (examples) of a batch. The entry ``rows`` is a list of one
            tensor, the index of each row's item, or an empty list if row i is item i.
        new_order: [R] for each new row, the index of the old row that it continues.

    Returns:
        A dict with the tensors of ``encoder_out``, and with a new entry ``rows``.
    """
    before = encoder_out[ROWS]
    rows = before[0] if before else torch.arange(num_items, device=new_order.device)
    return {**encoder_out, ROWS: [rows.index_select(0, new_order)]}


def get_rate(dropout: Any) -> float:
    """Return the current rate of a dropout module of fairseq.

    The rate is 0 in evaluation mode, except with ``--retain-dropout``.
    """
    return dropout.p if dropout.training or dropout.apply_during_inference else 0.0


class SharedMemory:
    """Encoded text and projected frames of each item (example), for the rows (beams) of a decoder.

    If all items have the same number of neighbouring rows, each item is stored once. Otherwise each
    item is copied for each of its rows, and every copy counts as an item.

    Args:
        text: [S, B, C] encoded text of B items, S tokens of C channels.
        text_mask: [B, S] bool, True at padding.
        projected: Dict from the number of a layer with video fusion to its projected frames,
            tensors [B, ...], see :meth:`VideoFusion.project`.
        video_mask: [B, M] bool, True at padded frames; None if all frames are attended to.
        rows: [R] index of each row's item; None if row i is item i.

    Attributes:
        size: Number of rows (beams) per stored item.
        keys_values: Dict from the number of a layer, counted from 0, to the keys and values
            [B, heads, S, head_dim] of the text.
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
        # Computed by the first step: training needs none, and would wait for the device.
        self._step_mask: Optional[Tensor] = None
        self.keys_values: dict[int, tuple[Tensor, Tensor]] = {}
        if rows is not None:
            self._assign(rows)

    def reorder(self, new_order: Tensor) -> Optional[Tensor]:
        """Change the order of the rows (beams); copy the stored items (examples) only if necessary.

        Args:
            new_order: [R] for each new row, the index of the old row that it continues.

        Returns:
            For each item that is stored now, its index before the call; None if the stored items
                did not change.
        """
        # A row belongs to item row // size, because the rows of an item are neighbours.
        return self._assign(torch.div(new_order, self.size, rounding_mode="floor"))

    def fuse(self, fusion: nn.Module, number: str, x: Tensor, trace: Any = None) -> Tensor:
        """Fuse the words of R rows (beams) with the frames of their items (examples): [R, T, C].

        Args:
            fusion: :class:`VideoFusion` after the layer.
            number: Number of the layer, a key of ``projected``.
            x: [R, T, C] states of T words, C channels.
            trace: :class:`FusionTrace` that records attention weights and gates; None for no
                record.
        """
        # The rows of an item become several queries to one set of frames.
        grouped = x.reshape(-1, self.size * x.size(1), x.size(2))
        fused = fusion(grouped, self.projected[number], self.video_mask, trace)
        return fused.view_as(x)

    def attend(
        self, attention: Any, layer: int, x: Tensor, *, need_weights: bool
    ) -> tuple[Tensor, Optional[Tensor]]:
        """Attend from each row (beam) to the text of its item (example).

        Args:
            attention: Attention module of fairseq, ``encoder_attn`` of the layer.
            layer: Number of the layer, from 0; keys and values are computed at its first call.
            x: [R, C] states of R rows.
            need_weights: True to return the attention weights.

        Returns:
            [R, C] output of the attention, and the weights [R, heads, S] or None.
        """
        heads = attention.num_heads
        if layer not in self.keys_values:
            text = self.text.transpose(0, 1)  # [B, S, C]
            keys, values = (
                shrink_cached(split_heads(project(text), heads).contiguous(), project.weight)
                for project in (attention.k_proj, attention.v_proj)
            )
            self.keys_values[layer] = keys, values
            if bool(self.text_mask.any()):
                self._step_mask = ~self.text_mask[:, None, None]
        keys, values = self.keys_values[layer]
        # the rows of an item are several queries to one text: [B, rows, C] -> [B, heads, rows, D]
        query = split_heads(attention.q_proj(x).view(len(keys), self.size, -1), heads)
        mask = self._step_mask
        dropout = get_rate(attention.dropout_module)
        weights = None
        if need_weights:
            weights = attention_weights(query, keys, mask)
            attended = torch.matmul(F.dropout(weights, dropout).to(values.dtype), values)
            attended = attended.to(x.dtype)
            weights = weights.transpose(1, 2).flatten(0, 1)
        else:
            attended = attend(query, keys, values, mask, dropout=dropout)
        return attention.out_proj(merge_heads(attended).reshape(x.shape)), weights

    def _assign(self, rows: Tensor) -> Optional[Tensor]:
        items, self.size = group_rows(rows, len(self.text_mask))
        if items is None:
            return None
        self.text = self.text.index_select(1, items)
        self.text_mask = self.text_mask.index_select(0, items)
        self.projected = select_rows(self.projected, items)
        self.keys_values = select_rows(self.keys_values, items)
        self._step_mask = select_rows(self._step_mask, items)
        self.video_mask = select_rows(self.video_mask, items)
        return items
