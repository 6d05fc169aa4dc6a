"""Encoder and decoder of VG-BART: fairseq's BART with video fusions after some layers.

fairseq's generator copies the encoder's output for every beam, and again when beams are reordered.
Here it is stored once per example (item), and each beam (row) has the index of its item.
:func:`share_beams` speeds up generation with fairseq's own BART, the text-only baseline.
"""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.models.transformer import (
    TransformerDecoder,
    TransformerDecoderBase,
    TransformerEncoder,
    TransformerEncoderBase,
)
from fairseq.modules.transformer_layer import (
    TransformerEncoderLayer,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from fairseq_mm.models._bases import EncoderOut
from fairseq_mm.models._video_guided import VideoReader, numbered
from fairseq_mm.modules.attention import attend, attention_weights, merge_heads, split_heads
from fairseq_mm.modules.decoding_caches import BeamCache, group_rows, select_rows
from fairseq_mm.modules.packed_weights import shrink_cached
from fairseq_mm.modules.video_fusion import FusionTrace

STATE = "shared_memory"
CACHE = "beam_cache"
# Parameters of stock fairseq's encoder layers that repeat others for PyTorch's fused layer.
DUPLICATES = tuple(
    f"{name}_{kind}"
    for name in ("in_proj", "out_proj", "fc1", "fc2")
    for kind in ("weight", "bias")
)
ROWS = "rows"  # entry of the encoder's output: index of the example of each row (beam)


def reorder_items(encoder_out: EncoderOut, new_order: Tensor, num_items: int) -> EncoderOut:
    """Reorder the rows (beams) of an encoder output without copying its large tensors.

    The entry ``rows`` is a list of one tensor, the index of each row's item, or empty if row i is
    item i.
    """
    before = encoder_out[ROWS]
    rows = before[0] if before else torch.arange(num_items, device=new_order.device)
    return {**encoder_out, ROWS: [rows.index_select(0, new_order)]}


def get_rate(dropout: Any) -> float:
    """Return a dropout module's current rate: in evaluation 0, except with ``--retain-dropout``."""
    return dropout.p if dropout.training or dropout.apply_during_inference else 0.0


class SharedMemory:
    """Encoded text and projected frames of each item (example), for the rows (beams) of a decoder.

    If all items have the same number of neighbouring rows, each item is stored once. Otherwise each
    item is copied for each of its rows, and every copy counts as an item.

    Args:
        text: [S, B, C] encoded text of B items.
        text_mask: [B, S] bool, True at padding.
        projected: Dict from the number of a layer with video fusion to its projected frames,
            tensors [B, ...], see :meth:`VideoFusion.project`.
        video_mask: [B, M] bool, True at padded frames; None if all frames are attended to.
        rows: [R] index of each row's item; None if row i is item i.

    Attributes:
        size: Number of rows (beams) per stored item.
        keys_values: For each layer, from 0, keys and values [B, heads, S, head_dim] of the text.
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
        """Change the order of the rows (beams): the new row i continues the old row
        ``new_order[i]``.

        Returns the previous index of each item that is still stored; None if no index has changed.
        """
        # A row belongs to item row // size, because the rows of an item are neighbours.
        return self._assign(torch.div(new_order, self.size, rounding_mode="floor"))

    def fuse(self, fusion: nn.Module, number: str, x: Tensor, trace: Any = None) -> Tensor:
        """Fuse the words [R, T, C] of R rows (beams) with the frames of their items: [R, T, C]."""
        # The rows of an item become several queries to one set of frames.
        grouped = x.reshape(-1, self.size * x.size(1), x.size(2))
        fused = fusion(grouped, self.projected[number], self.video_mask, trace)
        return fused.view_as(x)

    def attend(
        self, attention: Any, layer: int, x: Tensor, *, need_weights: bool
    ) -> tuple[Tensor, Optional[Tensor]]:
        """Attend from each row (beam), x [R, C], to the text of its item.

        Args:
            attention: Attention module of fairseq, ``encoder_attn`` of the layer.
            layer: Number of the layer, from 0; keys and values are computed at its first call.

        Returns:
            [R, C] output of the attention, and the weights [R, heads, S] if they are needed.
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


class _EncoderLayer(TransformerEncoderLayerBase):
    """Layer of the encoder of fairseq's BART that can use packed weights.

    fairseq's attention passes its weights to a function of PyTorch, which cannot use packed ones.
    """

    def forward(
        self,
        x: Tensor,
        encoder_padding_mask: Optional[Tensor],
        attn_mask: Optional[Tensor] = None,
    ) -> Tensor:
        if attn_mask is not None or torch.is_grad_enabled():
            return super().forward(x, encoder_padding_mask, attn_mask)
        before, own = self.normalize_before, self.self_attn
        h = self.self_attn_layer_norm(x) if before else x
        shape = (*h.shape[:2], own.num_heads, -1)
        projections = (own.q_proj, own.k_proj, own.v_proj)
        query, key, value = (project(h).view(shape).permute(1, 2, 0, 3) for project in projections)
        mask = None if encoder_padding_mask is None else ~encoder_padding_mask[:, None, None]
        h = attend(query, key, value, mask, dropout=get_rate(own.dropout_module))
        x = x + self.dropout_module(own.out_proj(h.permute(2, 0, 1, 3).reshape(x.shape)))
        x = x if before else self.self_attn_layer_norm(x)
        h = self.final_layer_norm(x) if before else x
        h = self.activation_dropout_module(self.activation_fn(self.fc1(h)))
        x = x + self.dropout_module(self.fc2(h))
        return x if before else self.final_layer_norm(x)


def let_layers_use_packed_weights(encoder: TransformerEncoder) -> None:
    """Replace the class of the plain layers of fairseq's encoder, but keep their weights."""
    for layer in encoder.layers:
        is_plain = type(layer) in (TransformerEncoderLayer, TransformerEncoderLayerBase)
        # attributes of some versions of fairseq
        has_extras = any(getattr(layer, x, False) for x in ("return_fc", "can_use_fastpath"))
        if is_plain and not has_extras:
            layer.__class__ = _EncoderLayer


class VgBartEncoder(TransformerEncoder):
    """Encoder of fairseq's BART with video fusions after some layers.

    Args:
        fusions: Module dict from the number of a layer, counted from 1, to the
            :class:`VideoFusion` after this layer.
        gives_video: True to return the encoded frames, which a decoder with fusions needs.
    """

    def __init__(
        self,
        args: Any,
        dictionary: Any,
        embed_tokens: nn.Embedding,
        *,
        video: VideoReader,
        fusions: nn.ModuleDict,
        gives_video: bool,
    ) -> None:
        super().__init__(args, dictionary, embed_tokens)
        self.video = video
        self.fusions: Any = fusions
        self.gives_video = gives_video
        for layer in self.layers:
            # Stock fairseq 0.12.2 only: PyTorch's fused layer wants the batch first. The copies of
            # parameters for it would learn nothing.
            if hasattr(layer, "can_use_fastpath"):
                layer.can_use_fastpath = False
                for name in DUPLICATES:
                    getattr(layer, name).requires_grad_(False)
        let_layers_use_packed_weights(self)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        features: Optional[Tensor] = None,
        padding_mask: Optional[Tensor] = None,
        trace: Optional[FusionTrace] = None,
        **unused: Any,
    ) -> EncoderOut:
        """Encode transcripts and frames.

        Args:
            src_tokens: [B, S] transcripts, padded on either side.
            features: [B, M, D] frames, padded at the end.
            padding_mask: [B, M] bool, True at padding; None for no padding.
            trace: Record to which the fusions append their attention weights and gates, in the
                order of the layers; None for no record.

        Returns:
            A dict of lists: ``encoder_out`` [S, B, C]; ``encoder_padding_mask`` [B, S] bool;
                ``video`` [B, M, D], empty if the decoder has no fusions; ``video_padding_mask``
                [B, M] bool, empty if all frames are attended to; ``rows``, the index of the example
                of each row (beam), empty until :meth:`reorder_encoder_out` is called.
        """
        text_mask = src_tokens.eq(self.padding_idx)
        # The test would wait for a GPU; most batches have padding.
        has_padding = src_tokens.is_cuda or bool(text_mask.any())
        x, _ = self.forward_embedding(src_tokens)
        if has_padding:
            # As fairseq does: embeddings of positions have filled the padding.
            x = x.masked_fill(text_mask.unsqueeze(-1), 0.0)
        x = x.transpose(0, 1)  # [S, B, C]
        video, video_mask = self.video(features, padding_mask, x.dtype)
        for number, layer in numbered(self.layers):
            x = layer(x, encoder_padding_mask=text_mask if has_padding else None)
            if str(number) in self.fusions:
                fusion = self.fusions[str(number)]
                text = x.transpose(0, 1).contiguous()
                fused = fusion(text, fusion.project(video), video_mask, trace)
                x = fused.transpose(0, 1).contiguous()
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        is_masked = self.gives_video and video_mask is not None
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [text_mask],
            "encoder_embedding": [],
            "encoder_states": [],
            "video": [video] if self.gives_video else [],
            "video_padding_mask": [video_mask] if is_masked else [],
            ROWS: [],
        }

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        num_items = encoder_out["encoder_out"][0].size(1)
        return reorder_items(encoder_out, new_order, num_items)


class VgBartDecoder(TransformerDecoder):
    """Decoder of fairseq's BART with video fusions after some layers, see :class:`VgBartEncoder`.

    The beams of an example share the keys and values of its transcript and video.
    """

    def __init__(
        self, args: Any, dictionary: Any, embed_tokens: nn.Embedding, *, fusions: nn.ModuleDict
    ) -> None:
        super().__init__(args, dictionary, embed_tokens)
        self.fusions: Any = fusions

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[EncoderOut] = None,
        incremental_state: Optional[dict] = None,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
        trace: Optional[FusionTrace] = None,
    ) -> tuple[Tensor, dict[str, list[Optional[Tensor]]]]:
        """Compute features [R, T, C], or [R, 1, C] when decoding incrementally.

        R is the number of rows, one for each beam of each example. The second result is a dict with
        ``attn``, a list of one tensor: the weights [R, T, S] of the transcript's S tokens. The
        arguments are fairseq's, and ``trace``, to which the fusions append their attention weights
        and gates.
        """
        assert encoder_out is not None
        if incremental_state is not None:
            return self._step(
                prev_output_tokens, encoder_out, incremental_state, alignment_layer, alignment_heads
            )
        # The rest of this method copies fairseq's, which has no hook between the layers for the
        # fusions.
        positions = self.embed_positions(prev_output_tokens)
        x = self.embed_scale * self.embed_tokens(prev_output_tokens) + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x).transpose(0, 1)  # [T, R, C]
        is_padding = prev_output_tokens.eq(self.padding_idx)
        padding_mask = is_padding if is_padding.is_cuda or is_padding.any() else None
        future_mask = None if full_context_alignment else self.buffered_future_mask(x)
        memory = self._memory(encoder_out, None)
        aligned = self.num_layers if alignment_layer is None else alignment_layer + 1
        attention = None
        for number, layer in numbered(self.layers):
            x, weights, _ = layer(
                x,
                memory.text,
                memory.text_mask,
                None,
                self_attn_mask=future_mask,
                self_attn_padding_mask=padding_mask,
                need_attn=number == aligned,
                need_head_weights=number == aligned,
            )
            if number == aligned:
                attention = weights  # [heads, R, T, S]
            if str(number) in self.fusions:
                text = x.transpose(0, 1).contiguous()
                fused = memory.fuse(self.fusions[str(number)], str(number), text, trace)
                x = fused.transpose(0, 1).contiguous()
        if attention is not None:
            attention = attention[:alignment_heads].float().mean(dim=0).to(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x.transpose(0, 1), {"attn": [attention]}

    def _step(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: dict,
        alignment_layer: Optional[int],
        alignment_heads: Optional[int],
    ) -> tuple[Tensor, dict[str, list[Optional[Tensor]]]]:
        positions = self.embed_positions(prev_output_tokens, incremental_state=incremental_state)
        x = self.embed_scale * self.embed_tokens(prev_output_tokens[:, -1]) + positions[:, -1]
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        # Dropout does nothing here, except with fairseq's --retain-dropout.
        x = self.dropout_module(x)
        memory = self._memory(encoder_out, incremental_state)
        cache = self._cache(memory, x, incremental_state)
        cache.add_position()
        aligned = self.num_layers - 1 if alignment_layer is None else alignment_layer
        attention = None
        layer: Any
        for number, layer in numbered(self.layers):
            index = number - 1
            before = layer.normalize_before
            h = layer.self_attn_layer_norm(x) if before else x
            own = layer.self_attn
            dropout = get_rate(own.dropout_module)
            h = cache.attend(index, own.q_proj(h), own.k_proj(h), own.v_proj(h), dropout=dropout)
            x = x + layer.dropout_module(own.out_proj(h))
            x = x if before else layer.self_attn_layer_norm(x)
            h = layer.encoder_attn_layer_norm(x) if before else x
            h, weights = memory.attend(layer.encoder_attn, index, h, need_weights=index == aligned)
            x = x + layer.dropout_module(h)
            x = x if before else layer.encoder_attn_layer_norm(x)
            h = layer.final_layer_norm(x) if before else x
            h = layer.activation_dropout_module(layer.activation_fn(layer.fc1(h)))
            x = x + layer.dropout_module(layer.fc2(h))
            x = x if before else layer.final_layer_norm(x)
            attention = attention if weights is None else weights
            if str(number) in self.fusions:
                fusion = self.fusions[str(number)]
                x = memory.fuse(fusion, str(number), x.unsqueeze(1)).squeeze(1)
        if attention is not None:
            attention = attention[:, :alignment_heads].float().mean(dim=1).to(x).unsqueeze(1)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x.unsqueeze(1), {"attn": [attention]}  # [R, 1, S]

    def reorder_incremental_state_scripting(
        self, incremental_state: dict, new_order: Tensor
    ) -> None:
        # Keys and values are stored once per example, so they are copied only if one was removed.
        memory: Any = self.get_incremental_state(incremental_state, STATE)
        cache: Any = self.get_incremental_state(incremental_state, CACHE)
        if cache is not None:
            items = memory.reorder(new_order)
            cache.select(new_order, items, memory.size)

    def _cache(self, memory: SharedMemory, x: Tensor, incremental_state: dict) -> BeamCache:
        cache: Any = self.get_incremental_state(incremental_state, CACHE)
        if cache is None:
            attention = self.layers[0].self_attn
            heads, head_dim = attention.num_heads, attention.head_dim
            num_items = len(x) // memory.size
            like = shrink_cached(x, attention.k_proj.weight)
            cache = BeamCache(self.num_layers, heads, head_dim, num_items, like)
            self.set_incremental_state(incremental_state, CACHE, cache)
        return cache

    def _memory(self, encoder_out: EncoderOut, incremental_state: Optional[dict]) -> SharedMemory:
        memory: Any = None
        if incremental_state is not None:
            memory = self.get_incremental_state(incremental_state, STATE)
        if memory is None:
            video = encoder_out["video"]
            memory = SharedMemory(
                encoder_out["encoder_out"][0],
                encoder_out["encoder_padding_mask"][0],
                {number: fusion.project(video[0]) for number, fusion in self.fusions.items()},
                encoder_out["video_padding_mask"][0] if encoder_out["video_padding_mask"] else None,
                encoder_out[ROWS][0] if encoder_out[ROWS] else None,
            )
            if incremental_state is not None:
                self.set_incremental_state(incremental_state, STATE, memory)
        return memory


# Attributes of fairseq's decoder layers that change the computation of a step, with the value that
# leaves it as VG-BART's decoder computes it.
_PLAIN_LAYER = {"c_attn": None, "w_resid": None, "attn_ln": None, "ffn_layernorm": None}
_PLAIN_DECODER = {
    "adaptive_softmax": None,
    "project_in_dim": None,
    "project_out_dim": None,
    "quant_noise": None,
    "cross_self_attention": False,
}


class _SharedEncoder(TransformerEncoder):
    """Encoder of fairseq's BART whose output the beams of an example share."""

    def forward(self, *args: Any, **kwargs: Any) -> EncoderOut:
        out = super().forward(*args, **kwargs)
        return {**out, "video": [], "video_padding_mask": [], ROWS: []}

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        return reorder_items(encoder_out, new_order, encoder_out["encoder_out"][0].size(1))

    # BARTModel.set_beam_size puts this method in the place of the other.
    _reorder_encoder_out = reorder_encoder_out


def _is_plain(module: nn.Module, values: dict[str, Any]) -> bool:
    return all(getattr(module, name, value) == value for name, value in values.items())


def share_beams(model: nn.Module) -> None:
    """Let fairseq's BART generate with the decoding steps of VG-BART, see :class:`VgBartDecoder`.

    Texts and scores stay the same. A BART with options that VG-BART lacks is left unchanged. The
    model must be in evaluation mode and is not trained afterwards.
    """
    encoder: Any = model.encoder
    decoder: Any = model.decoder
    if (
        type(encoder) in (TransformerEncoder, TransformerEncoderBase)
        and type(decoder) in (TransformerDecoder, TransformerDecoderBase)
        and decoder.embed_positions is not None
        and _is_plain(decoder, _PLAIN_DECODER)
        and all(_is_plain(layer, _PLAIN_LAYER) for layer in decoder.layers)
    ):
        let_layers_use_packed_weights(encoder)
        # The classes add methods and no state but the fusions, of which a text-only BART has none.
        encoder.__class__ = _SharedEncoder
        # Left by BARTModel.set_beam_size, if a generator was built before.
        vars(encoder).pop("reorder_encoder_out", None)
        decoder.__class__ = VgBartDecoder
        decoder.fusions = nn.ModuleDict()
