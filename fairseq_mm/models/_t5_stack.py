"""Defines encoder and decoder of T5, for T5 and VG-T5.

In a float16 model the residual stream is float32, because its values leave the range of float16
(65504) in the published models. Norms and softmax are float32 as well, and ``modules/t5_layers.py``
keeps matrix products within the range, so that no value has to be clamped.
"""

from typing import Any, Optional

import torch
from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from fairseq_mm.models._bases import EncoderOut, FeatureDecoder
from fairseq_mm.modules.decoding_caches import BeamCache, group_rows, select_rows
from fairseq_mm.modules.linear import linear
from fairseq_mm.modules.packed_weights import shrink_cached
from fairseq_mm.modules.t5_layers import RelativeBias, RMSNorm, T5Attention, T5FeedForward

STATE = "t5"


def _attention(cfg: Any) -> T5Attention:
    return T5Attention(cfg.model_dim, cfg.attention_heads, cfg.head_dim, cfg.dropout)


def _norm(cfg: Any) -> RMSNorm:
    return RMSNorm(cfg.model_dim, cfg.norm_epsilon)


def _feed_forward(cfg: Any) -> T5FeedForward:
    gated = str(cfg.feed_forward) == "gated_gelu"
    return T5FeedForward(cfg.model_dim, cfg.ffn_dim, cfg.dropout, gated=gated)


def _relative_bias(cfg: Any, *, bidirectional: bool) -> RelativeBias:
    bias = RelativeBias(
        cfg.relative_buckets,
        cfg.attention_heads,
        max_distance=cfg.max_distance,
        bidirectional=bidirectional,
    )
    nn.init.normal_(bias.weight, std=cfg.model_dim**-0.5)
    return bias


class T5EncoderLayer(nn.Module):
    """Pre-norm encoder layer with self-attention and a feed-forward network.

    Raffel et al. 2020, section 2.1.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.self_attention_norm = _norm(cfg)
        self.self_attention = _attention(cfg)
        self.feed_forward_norm = _norm(cfg)
        self.feed_forward = _feed_forward(cfg)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Compute the layer's output [B, S, D] from its input x [B, S, D].

        ``bias`` is added to the attention scores. It broadcasts to [B, heads, S, S] and is ``-inf``
        at padding.
        """
        normed = self.self_attention_norm(x)
        query = self.self_attention.queries(normed)
        key, value = self.self_attention.keys_and_values(normed)
        x = x + self.dropout(self.self_attention(query, key, value, bias))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class T5DecoderLayer(nn.Module):
    """Pre-norm decoder layer with self-attention, attention to the source and feed-forward network.

    Raffel et al. 2020, section 2.1.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.self_attention_norm = _norm(cfg)
        self.self_attention = _attention(cfg)
        self.source_attention_norm = _norm(cfg)
        self.source_attention = _attention(cfg)
        self.feed_forward_norm = _norm(cfg)
        self.feed_forward = _feed_forward(cfg)
        self.dropout = nn.Dropout(cfg.dropout)

    def attend_source(
        self, x: Tensor, source: tuple[Tensor, Tensor], source_bias: Optional[Tensor]
    ) -> Tensor:
        """Attend from x [rows, T, D] to the source, and add the result to x.

        Args:
            x: [rows, T, D] states of T tokens per row. Rows are the beams of a search, items are
                the examples of the batch.
            source: Keys and values of the encoder's output, [items, heads, S, dimension of a head]
                each. If there are more rows than items, equally many neighbouring rows share an
                item.
            source_bias: [items, 1, 1, S] bias that is added to the attention scores, ``-inf`` at
                padding; None if there is no padding.
        """
        query = self.source_attention_norm(x)
        items = len(source[0])
        if len(x) != items:
            # The beams of an item become several queries to one set of keys, which is neither
            # copied nor read once for each beam.
            query = query.view(items, -1, x.size(-1))
        query = self.source_attention.queries(query)
        attended = self.source_attention(query, *source, source_bias)
        return x + self.dropout(attended.view_as(x))

    def forward(
        self,
        x: Tensor,
        bias: Tensor,
        source: tuple[Tensor, Tensor],
        source_bias: Optional[Tensor],
        cached: Optional[tuple[BeamCache, int]] = None,
    ) -> Tensor:
        """Compute the layer's output [rows, T, D] from its input x [rows, T, D].

        Args:
            x: [rows, T, D]; when decoding incrementally T is 1.
            bias: Bias that is added to the scores of the self-attention. Without ``cached``, it
                broadcasts to [rows, heads, T, T]; with ``cached``, it is the result of
                :meth:`BeamCache.mask_bias`.
            source: Keys and values of the encoder's output, see :meth:`attend_source`.
            source_bias: Bias of the attention to the source, see :meth:`attend_source`.
            cached: When decoding incrementally, a pair: the cache of keys and values of all layers,
                and the index of this layer in the cache; otherwise None.
        """
        normed = self.self_attention_norm(x)
        if cached is not None:
            # [items, beams, D]: the beams of an item are several queries to the tokens of all.
            normed = normed.view(-1, cached[0].beams, x.size(-1))
        query = self.self_attention.queries(normed)
        key, value = self.self_attention.keys_and_values(normed)
        if cached is not None:
            cache, number = cached
            key, value = cache.write(number, key, value)
        x = x + self.dropout(self.self_attention(query, key, value, bias).view_as(x))
        x = self.attend_source(x, source, source_bias)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


def _embed(embedding: nn.Embedding, tokens: Tensor) -> Tensor:
    x = embedding(tokens)
    # The residual stream starts here and stays float32, as the module says.
    return x.float() if x.dtype == torch.float16 else x


class T5Encoder(FairseqEncoder):
    """Encoder of T5. The decoder uses the same word embedding, ``embedding``."""

    def __init__(self, dictionary: Any, embedding: nn.Embedding, cfg: Any) -> None:
        super().__init__(dictionary)
        self.embedding = embedding
        self.relative_bias = _relative_bias(cfg, bidirectional=True)
        self.layers: Any = nn.ModuleList(T5EncoderLayer(cfg) for _ in range(cfg.encoder_layers))
        self.final_norm = _norm(cfg)
        self.dropout = nn.Dropout(cfg.dropout)
        self._max_positions = cfg.max_source_positions

    def forward(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None) -> EncoderOut:
        """Encode sources ``src_tokens`` [B, S], padded on either side; lengths are not used.

        Returns a dict of lists: ``encoder_out`` [S, B, D]; ``encoder_padding_mask`` [B, S] bool (an
        empty list if there is no padding); and ``rows``, the index of the source that belongs to
        each row (beam), which is empty until :meth:`reorder_encoder_out` is called. The other keys
        that fairseq expects have empty lists.
        """
        return self._encode(src_tokens)

    def _encode(self, src_tokens: Tensor, video: Any = None) -> EncoderOut:
        padding_mask = src_tokens.eq(self.dictionary.pad())
        # The test would wait for a GPU; most batches have padding.
        is_padded = src_tokens.is_cuda or bool(padding_mask.any())
        bias = self.relative_bias(src_tokens.size(1))
        if is_padded:
            # Unpadded batches keep a bias of [1, H, S, S]; a masked bias has one matrix per row.
            bias = bias.masked_fill(padding_mask[:, None, None], float("-inf"))
        x = self.dropout(_embed(self.embedding, src_tokens))
        for number, layer in enumerate(self.layers, start=1):
            x = self.fuse(layer(x, bias), number, video)
        x = self.fuse_output(self.dropout(self.final_norm(x)), video)
        return {
            "encoder_out": [x.transpose(0, 1)],
            "encoder_padding_mask": [padding_mask] if is_padded else [],
            "encoder_embedding": [],
            "encoder_states": [],
            "src_tokens": [],
            "src_lengths": [],
            "rows": [],
        }

    def fuse(self, x: Tensor, number: int, video: Any) -> Tensor:
        """Return the output x [B, S, D] of layer ``number``, counted from 1, unchanged.

        VG-T5 overrides this method and fuses x with ``video``, the encoded frames. In T5,
        ``video`` is None.
        """
        return x

    def fuse_output(self, x: Tensor, video: Any) -> Tensor:
        """Return the output x [B, S, D] of the final norm unchanged.

        VG-T5 overrides this method and can fuse x with ``video``, the encoded frames. In T5,
        ``video`` is None.
        """
        return x

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Reorder the beams by updating only ``encoder_out["rows"]``.

        This entry has the index of each beam's source text in the other tensors.
        """
        rows = encoder_out["rows"]
        # fairseq reorders at every step of a search, and the beams of an item can share its
        # tensors.
        return {**encoder_out, "rows": [rows[0].index_select(0, new_order) if rows else new_order]}

    def max_positions(self) -> int:
        return self._max_positions


class T5Decoder(FeatureDecoder):
    """Decoder of T5. The encoder uses the same word embedding, ``embedding``.

    ``output`` is the output layer. If it is None, the matrix of the embedding is the output layer,
    and the inputs of the output layer, of dimension D, are scaled by D^-0.5.
    """

    def __init__(
        self, dictionary: Any, embedding: nn.Embedding, cfg: Any, output: Optional[nn.Linear] = None
    ) -> None:
        super().__init__(dictionary)
        self.embedding = embedding
        self.output_proj = output
        self.relative_bias = _relative_bias(cfg, bidirectional=False)
        self.layers: Any = nn.ModuleList(T5DecoderLayer(cfg) for _ in range(cfg.decoder_layers))
        self.final_norm = _norm(cfg)
        self.dropout = nn.Dropout(cfg.dropout)
        self._max_positions = cfg.max_target_positions

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[EncoderOut] = None,
        incremental_state: Optional[dict] = None,
        trace: Any = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute features [B, T, D], or [B, 1, D] when decoding incrementally.

        Args:
            prev_output_tokens: [B, T] tokens so far. The first one is the padding token, which T5
                uses as start token. Padding is on the right; its outputs are undefined.
            encoder_out: Output of the encoder.
            incremental_state: fairseq's state of incremental decoding; None to compute all steps.
            trace: :class:`FusionTrace`, in which :meth:`fuse` of VG-T5 records the attention to
                frames; None for no record.
            **unused: Arguments that fairseq passes to other models.

        Returns:
            Features, and the dict ``{"attn": None}``, without attention weights.
        """
        assert encoder_out is not None
        if incremental_state is None:
            source = self._source(encoder_out)
            if encoder_out["rows"]:
                # Without an incremental state rows may be in any order, so they are copied.
                source = select_rows(source, encoder_out["rows"][0])
            T = prev_output_tokens.size(1)
            is_later = torch.ones(T, T, dtype=torch.bool, device=prev_output_tokens.device).triu(1)
            bias = self.relative_bias(T).masked_fill(is_later, float("-inf"))
            cache = None
        else:
            saved = self._state(incremental_state, encoder_out)
            prev_output_tokens = prev_output_tokens[:, -1:]
            source, cache = saved["source"], saved["cache"]
            if cache is None:
                layer = self.layers[0].self_attention
                like = self.embedding.weight.new_empty(len(prev_output_tokens), 0)
                like = shrink_cached(like, layer.key_proj.weight)
                A = layer.query_proj.out_features // layer.num_heads
                # Built here and not with the source: only now is the number of beams known.
                num_items = len(source["keys"][0])
                cache = BeamCache(len(self.layers), layer.num_heads, A, num_items, like)
                saved["cache"] = cache
            cache.add_position()
            bias = saved["bias"]
            if bias is None or bias.size(1) < cache.length:
                # More distances than needed, so that most steps only take a slice.
                bias = saved["bias"] = self.relative_bias.newest(2 * cache.length + 30)
            bias = cache.mask_bias(bias[:, bias.size(1) - cache.length :])
        x = self.dropout(_embed(self.embedding, prev_output_tokens))
        for number, layer in enumerate(self.layers, start=1):
            cached = None if cache is None else (cache, number - 1)
            keys_and_values = source["keys"][number - 1], source["values"][number - 1]
            x = layer(x, bias, keys_and_values, source["bias"], cached)
            x = self.fuse(x, number, source, trace)
        return self.dropout(self.final_norm(x)), {"attn": None}

    def fuse(self, x: Tensor, number: int, source: dict[str, Any], trace: Any = None) -> Tensor:
        """Return the output x [rows, T, D] of layer ``number``, counted from 1, unchanged.

        VG-T5 overrides this method: it fuses x with the frames in ``source``, and records attention
        weights in ``trace``, a :class:`FusionTrace`, unless it is None.
        """
        return x

    def output_layer(self, features: Tensor, **unused: Any) -> Tensor:
        """Compute logits [..., V] over the vocabulary from features [..., D]."""
        if self.output_proj is not None:
            return linear(features, self.output_proj.weight)
        # Embeddings of T5 have a standard deviation of 1, so a tied output layer needs the scale.
        return linear(features * features.size(-1) ** -0.5, self.embedding.weight)

    def _source(self, encoder_out: EncoderOut) -> dict[str, Any]:
        """Compute the keys, values and padding bias of the attention to the encoder's output."""
        x = encoder_out["encoder_out"][0].transpose(0, 1)
        attentions = [layer.source_attention for layer in self.layers]
        projected = [
            [shrink_cached(y, attention.key_proj.weight) for y in attention.keys_and_values(x)]
            for attention in attentions
        ]
        bias = None
        if encoder_out["encoder_padding_mask"]:
            padding_mask = encoder_out["encoder_padding_mask"][0][:, None, None]
            bias = torch.zeros_like(padding_mask, dtype=x.dtype)
            bias = bias.masked_fill(padding_mask, float("-inf"))
        return {
            "keys": [key for key, _ in projected],
            "values": [value for _, value in projected],
            "bias": bias,
        }

    def _state(self, incremental_state: dict, encoder_out: EncoderOut) -> dict[str, Any]:
        """Return the state of incremental decoding, a dict; the first call makes it."""
        saved = self.get_incremental_state(incremental_state, STATE)
        if saved is None:
            source = self._source(encoder_out)
            saved = {"source": source, "beams": 1, "cache": None, "bias": None}
            if encoder_out["rows"]:
                items, saved["beams"] = group_rows(encoder_out["rows"][0], len(source["keys"][0]))
                if items is not None:
                    saved["source"] = select_rows(source, items)
            self.set_incremental_state(incremental_state, STATE, saved)
        return saved

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        saved = self.get_incremental_state(incremental_state, STATE)
        if saved is None:
            return
        # A row belongs to item row // beams, because the rows of an item are neighbours.
        rows = torch.div(new_order, saved["beams"], rounding_mode="floor")
        items, saved["beams"] = group_rows(rows, len(saved["source"]["keys"][0]))
        if items is not None:
            saved["source"] = select_rows(saved["source"], items)
        saved["cache"].select(new_order, items, saved["beams"])

    def max_positions(self) -> int:
        return self._max_positions
