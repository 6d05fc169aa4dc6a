"""Encoder and decoder of T5, for T5 and VG-T5.

The residual stream of a float16 model is float32, because its values leave the range of float16
(65504) in the published models. Norms and softmax are float32 as well, and ``modules/t5_layers.py``
keeps products within the range, so that nothing has to be clamped.
"""

from typing import Any, Optional

import torch
from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from fairseq_mm.models._bases import EncoderOut, FeatureDecoder
from fairseq_mm.modules.decoding_caches import KeyValueCache, keeps_all, select_rows
from fairseq_mm.modules.linear import linear
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
    """Self-attention and feed-forward layer, a norm before each (Raffel et al. 2020, 2.1)."""

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.self_attention_norm = _norm(cfg)
        self.self_attention = _attention(cfg)
        self.feed_forward_norm = _norm(cfg)
        self.feed_forward = _feed_forward(cfg)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Compute the layer: [B, S, D] -> [B, S, D].

        ``bias`` broadcasts to [B, H, S, S] and is ``-inf`` at padding.
        """
        normed = self.self_attention_norm(x)
        query = self.self_attention.queries(normed)
        key, value = self.self_attention.keys_and_values(normed)
        x = x + self.dropout(self.self_attention(query, key, value, bias))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class T5DecoderLayer(nn.Module):
    """Self-attention, attention to the source and feed-forward layer, a norm before each."""

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
            x: [rows, T, D].
            source: Keys and values, [items, H, S, A] each. If there are more rows than items,
                equally many neighbouring rows share an item: the beams of a search.
            source_bias: [items, 1, 1, S], ``-inf`` at padding; None for no padding.
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

    def feed(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))

    def forward(
        self,
        x: Tensor,
        bias: Tensor,
        source: tuple[Tensor, Tensor],
        source_bias: Optional[Tensor],
        cached: Optional[tuple[KeyValueCache, int]] = None,
    ) -> Tensor:
        """Compute the layer, [rows, T, D] -> [rows, T, D]; see :meth:`attend_source`.

        ``bias`` broadcasts to [rows, H, T, T]. During decoding T is 1, ``cached`` has the cache of
        the earlier tokens and the number of this layer, and ``bias`` broadcasts to [rows, H, 1,
        length].
        """
        normed = self.self_attention_norm(x)
        query = self.self_attention.queries(normed)
        key, value = self.self_attention.keys_and_values(normed)
        if cached is not None:
            cache, number = cached
            key, value = cache.write(number, key, value)
        x = x + self.dropout(self.self_attention(query, key, value, bias))
        return self.feed(self.attend_source(x, source, source_bias))


def _embed(embedding: nn.Embedding, tokens: Tensor) -> Tensor:
    x = embedding(tokens)
    # The residual stream starts here and stays float32, as the module says.
    return x.float() if x.dtype == torch.float16 else x


class T5Encoder(FairseqEncoder):
    """T5 encoder, whose word embedding is shared with the decoder."""

    def __init__(self, dictionary: Any, embedding: nn.Embedding, cfg: Any) -> None:
        super().__init__(dictionary)
        self.embedding = embedding
        self.relative_bias = _relative_bias(cfg, bidirectional=True)
        self.layers: Any = nn.ModuleList(T5EncoderLayer(cfg) for _ in range(cfg.encoder_layers))
        self.final_norm = _norm(cfg)
        self.dropout = nn.Dropout(cfg.dropout)
        self._max_positions = cfg.max_source_positions

    def forward(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None) -> EncoderOut:
        """Encode sources [B, S], padded on either side.

        Returns ``encoder_out`` [S, B, D], ``encoder_padding_mask`` [B, S] bool (empty without
        padding), and ``rows``, see :meth:`reorder_encoder_out`; the other keys are empty.
        """
        return self._encode(src_tokens)

    def _encode(self, src_tokens: Tensor, video: Any = None) -> EncoderOut:
        padding_mask = src_tokens.eq(self.dictionary.pad())
        is_padded = bool(padding_mask.any())
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
        """Change the output [B, S, D] of a layer, counted from 1; VG-T5 overrides it."""
        return x

    def fuse_output(self, x: Tensor, video: Any) -> Tensor:
        """Change the output [B, S, D] of the stack; VG-T5 overrides it."""
        return x

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Store in ``rows`` the item of each row of the new order; tensors do not change."""
        rows = encoder_out["rows"]
        # fairseq reorders at every step of a search, and the beams of an item can share its
        # tensors.
        return {**encoder_out, "rows": [rows[0].index_select(0, new_order) if rows else new_order]}

    def max_positions(self) -> int:
        return self._max_positions


class T5Decoder(FeatureDecoder):
    """T5 decoder, whose word embedding is shared with the encoder.

    ``output`` is an output layer of its own; None for the embedding, with inputs scaled by D^-0.5.
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

        The first of the tokens [B, T] is T5's start token, which is its padding; real padding is on
        the right, where outputs are undefined. ``trace`` is for :meth:`fuse`.
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
                A = layer.query_proj.out_features // layer.num_heads
                # Built here and not with the source: only now is the number of beams known.
                cache = KeyValueCache(len(self.layers), layer.num_heads, A, like)
                saved["cache"] = cache
            cache.add_position()
            bias = saved["bias"]
            if bias is None or bias.size(1) < cache.length:
                # More distances than needed, so that most steps only take a slice.
                bias = saved["bias"] = self.relative_bias.newest(2 * cache.length + 30)
            bias = bias[:, bias.size(1) - cache.length :].unsqueeze(1).unsqueeze(0)
        x = self.dropout(_embed(self.embedding, prev_output_tokens))
        for number, layer in enumerate(self.layers, start=1):
            cached = None if cache is None else (cache, number - 1)
            keys_and_values = source["keys"][number - 1], source["values"][number - 1]
            x = layer(x, bias, keys_and_values, source["bias"], cached)
            x = self.fuse(x, number, source, trace)
        return self.dropout(self.final_norm(x)), {"attn": None}

    def fuse(self, x: Tensor, number: int, source: dict[str, Any], trace: Any = None) -> Tensor:
        """Change the output [rows, T, D] of a layer, counted from 1; VG-T5 overrides it."""
        return x

    def output_layer(self, features: Tensor, **unused: Any) -> Tensor:
        """Compute logits: [..., D] -> [..., V]."""
        if self.output_proj is not None:
            return linear(features, self.output_proj.weight)
        # Embeddings of T5 have a standard deviation of 1, so a tied output layer needs the scale.
        return linear(features * features.size(-1) ** -0.5, self.embedding.weight)

    def _source(self, encoder_out: EncoderOut) -> dict[str, Any]:
        """Compute the tensors that the layers read from the input; items come first."""
        x = encoder_out["encoder_out"][0].transpose(0, 1)
        projected = [layer.source_attention.keys_and_values(x) for layer in self.layers]
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
        """Return the state between steps; its ``source`` has only the remaining items."""
        saved = self.get_incremental_state(incremental_state, STATE)
        if saved is None:
            source = self._source(encoder_out)
            saved = {"items": source, "source": source, "rows": None, "cache": None, "bias": None}
            self.set_incremental_state(incremental_state, STATE, saved)
        rows = encoder_out["rows"][0] if encoder_out["rows"] else None
        if rows is None or (saved["rows"] is not None and torch.equal(rows, saved["rows"])):
            return saved
        # Beams are neighbours. If items have unequal numbers of rows, sharing is given
        # up.
        items, counts = torch.unique_consecutive(rows, return_counts=True)
        if not counts.eq(counts[0]).all():
            items = rows
        saved["rows"] = rows
        if keeps_all(items, len(saved["items"]["keys"][0])):
            saved["source"] = saved["items"]
        else:
            saved["source"] = select_rows(saved["items"], items)
        return saved

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        saved = self.get_incremental_state(incremental_state, STATE)
        if saved is not None:
            saved["cache"].select(new_order)

    def max_positions(self) -> int:
        return self._max_positions
