"""T5's encoder and decoder, which T5 and VG-T5 are made of.

The residual stream of a float16 model is float32: its values leave the range of float16 (65504) in
the published models. With the products that stay within it (see ``t5_attention.py`` and
``t5_feed_forward.py``) and norms and softmax in float32, nothing has to be clamped.
"""

from typing import Any, Optional

import torch
from fairseq.models import FairseqEncoder, FairseqIncrementalDecoder
from torch import Tensor, nn

from fairseq_mm.models._bases import EncoderOut
from fairseq_mm.modules.decoding_caches import KeyValueCache
from fairseq_mm.modules.linear import linear
from fairseq_mm.modules.t5_layers import RelativeBias, RMSNorm, T5Attention, T5FeedForward

STATE = "t5"


class T5Sizes:
    """Sizes and options that all layers share.

    Args:
        model_dim: D.
        num_heads: H.
        head_dim: A.
        gated: See :class:`T5FeedForward`.
        dropout: Dropout of embeddings, sub-layers, attention weights, inner layers and stack
            outputs.
        epsilon: Epsilon of the norms.
        num_buckets: See :class:`RelativeBias`.
        max_distance: See :class:`RelativeBias`.
    """

    def __init__(
        self,
        *,
        model_dim: int,
        num_heads: int,
        head_dim: int,
        inner_dim: int,
        gated: bool,
        dropout: float,
        epsilon: float,
        num_buckets: int,
        max_distance: int,
    ) -> None:
        self.model_dim = model_dim
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.inner_dim = inner_dim
        self.gated = gated
        self.dropout = dropout
        self.epsilon = epsilon
        self.num_buckets = num_buckets
        self.max_distance = max_distance

    def attention(self) -> T5Attention:
        return T5Attention(self.model_dim, self.num_heads, self.head_dim, self.dropout)

    def norm(self) -> RMSNorm:
        return RMSNorm(self.model_dim, self.epsilon)

    def feed_forward(self) -> T5FeedForward:
        return T5FeedForward(self.model_dim, self.inner_dim, self.dropout, gated=self.gated)

    def bias(self, *, bidirectional: bool) -> RelativeBias:
        bias = RelativeBias(
            self.num_buckets,
            self.num_heads,
            max_distance=self.max_distance,
            bidirectional=bidirectional,
        )
        nn.init.normal_(bias.weight, std=self.model_dim**-0.5)
        return bias


class T5EncoderLayer(nn.Module):
    """Self-attention and feed-forward layer, a norm before each (Raffel et al. 2020, 2.1)."""

    def __init__(self, sizes: T5Sizes) -> None:
        super().__init__()
        self.self_attention_norm = sizes.norm()
        self.self_attention = sizes.attention()
        self.feed_forward_norm = sizes.norm()
        self.feed_forward = sizes.feed_forward()
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """
        Args:
            x: ``[B, S, D]``.
            bias: broadcast to ``[B, H, S, S]``, ``-inf`` at padding.
        """
        normed = self.self_attention_norm(x)
        query = self.self_attention.queries(normed)
        key, value = self.self_attention.keys_and_values(normed)
        x = x + self.dropout(self.self_attention(query, key, value, bias))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class T5DecoderLayer(nn.Module):
    """As :class:`T5EncoderLayer`, with attention to the source between the two."""

    def __init__(self, sizes: T5Sizes) -> None:
        super().__init__()
        self.self_attention_norm = sizes.norm()
        self.self_attention = sizes.attention()
        self.source_attention_norm = sizes.norm()
        self.source_attention = sizes.attention()
        self.feed_forward_norm = sizes.norm()
        self.feed_forward = sizes.feed_forward()
        self.dropout = nn.Dropout(sizes.dropout)

    def attend_source(
        self, x: Tensor, source: tuple[Tensor, Tensor], source_bias: Optional[Tensor]
    ) -> Tensor:
        """
        Args:
            x: ``[rows, T, D]``.
            source: keys and values, ``[items, H, S, A]`` each. Where there are more rows than
                items, equally many neighbours share an item: the beams of a search.
            source_bias: ``[items, 1, 1, S]``, ``-inf`` at padding; None: no padding.
        """
        query = self.source_attention_norm(x)
        items = len(source[0])
        if len(x) != items:  # the beams of an item are the queries to it
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
        """
        Args:
            x: ``[rows, T, D]``; with ``cached`` T is 1.
            bias: broadcast to ``[rows, H, T, T]``, or ``[rows, H, 1, length]`` with ``cached``.
            source: see :meth:`attend_source`.
            source_bias: see :meth:`attend_source`.
            cached: where the earlier tokens' keys and values are, and the number of this layer.
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
    return x.float() if x.dtype == torch.float16 else x


class T5Encoder(FairseqEncoder):
    """
    Args:
        embedding: shared with the decoder.
        max_positions: longest source that a task may give.
    """

    def __init__(
        self,
        dictionary: Any,
        embedding: nn.Embedding,
        sizes: T5Sizes,
        *,
        num_layers: int,
        max_positions: int,
    ) -> None:
        super().__init__(dictionary)
        self.embedding = embedding
        self.relative_bias = sizes.bias(bidirectional=True)
        self.layers: Any = nn.ModuleList(T5EncoderLayer(sizes) for _ in range(num_layers))
        self.final_norm = sizes.norm()
        self.dropout = nn.Dropout(sizes.dropout)
        self._max_positions = max_positions

    def forward(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None) -> EncoderOut:
        """
        Args:
            src_tokens: ``[B, S]``, padded on either side.
            src_lengths: ``[B]``, not needed.

        Returns:
            ``encoder_out``: ``[S, B, D]``.
            ``encoder_padding_mask``: ``[B, S]`` bool, True at padding; missing without any.
            ``rows``: see :meth:`reorder_encoder_out`.
        """
        return self._encode(src_tokens)

    def _encode(self, src_tokens: Tensor, video: Any = None) -> EncoderOut:
        padding_mask = src_tokens.eq(self.dictionary.pad())
        is_padded = bool(padding_mask.any())
        bias = self.relative_bias(src_tokens.size(1))
        if is_padded:
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
        """Says which item each row of the new order belongs to, ``rows``: ``[rows]``, and leaves
        the rest as it is. A search reorders at every step, and its beams share their item."""
        rows = encoder_out["rows"]
        return {**encoder_out, "rows": [rows[0].index_select(0, new_order) if rows else new_order]}

    def max_positions(self) -> int:
        return self._max_positions


class T5Decoder(FairseqIncrementalDecoder):
    """
    Args:
        embedding: shared with the encoder.
        max_positions: longest target that a task may give.
        output: its own output layer; None: the embedding, with inputs scaled by D^-0.5.
    """

    def __init__(
        self,
        dictionary: Any,
        embedding: nn.Embedding,
        sizes: T5Sizes,
        *,
        num_layers: int,
        max_positions: int,
        output: Optional[nn.Linear] = None,
    ) -> None:
        super().__init__(dictionary)
        self.embedding = embedding
        self.output_proj = output
        self.relative_bias = sizes.bias(bidirectional=False)
        self.layers: Any = nn.ModuleList(T5DecoderLayer(sizes) for _ in range(num_layers))
        self.final_norm = sizes.norm()
        self.dropout = nn.Dropout(sizes.dropout)
        self._max_positions = max_positions

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[EncoderOut] = None,
        incremental_state: Optional[dict] = None,
        features_only: bool = False,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """
        Args:
            prev_output_tokens: ``[B, T]`` tokens so far, padding on the right, where its outputs
                mean nothing. The first is T5's start token, which is its padding.
            encoder_out: the encoder's.
            incremental_state: with it only the last token is new.
            features_only: leave the output layer out.
            **unused: of fairseq.

        Returns:
            logits ``[B, T, V]``, or ``[B, 1, V]`` when decoding incrementally; and a dictionary
            with ``attn``, None.
        """
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[EncoderOut] = None,
        incremental_state: Optional[dict] = None,
        trace: Any = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As :meth:`forward`, but ``[B, T, D]``; ``trace`` is for :meth:`fuse`."""
        assert encoder_out is not None
        if incremental_state is None:
            source = self._source(encoder_out)
            if encoder_out["rows"]:
                source = _select(source, encoder_out["rows"][0])
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
                cache = KeyValueCache(len(self.layers), layer.num_heads, A, like)
                saved["cache"] = cache
            cache.add_position()
            bias = self._newest_bias(saved, cache.length)
        x = self.dropout(_embed(self.embedding, prev_output_tokens))
        for number, layer in enumerate(self.layers, start=1):
            cached = None if cache is None else (cache, number - 1)
            keys_and_values = source["keys"][number - 1], source["values"][number - 1]
            x = layer(x, bias, keys_and_values, source["bias"], cached)
            x = self.fuse(x, number, source, trace)
        return self.dropout(self.final_norm(x)), {"attn": None}

    def fuse(self, x: Tensor, number: int, source: dict[str, Any], trace: Any = None) -> Tensor:
        """Change the output [rows, T, D] of a layer, counted from 1; VG-T5 overrides it. ``source``
        is the result of :meth:`_source`.
        """
        return x

    def output_layer(self, features: Tensor, **unused: Any) -> Tensor:
        """``[..., V]`` logits of ``[..., D]``."""
        if self.output_proj is not None:
            return linear(features, self.output_proj.weight)
        return linear(features * features.size(-1) ** -0.5, self.embedding.weight)

    def _source(self, encoder_out: EncoderOut) -> dict[str, Any]:
        """Compute the tensors that the layers read from the input, with the items as first
        dimension.
        """
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
        """Return the state that is kept between steps; its ``source`` contains only the remaining
        items.
        """
        saved = self.get_incremental_state(incremental_state, STATE)
        if saved is None:
            of_all = self._source(encoder_out)
            saved = {"of_all": of_all, "source": of_all, "rows": None, "cache": None, "bias": None}
            self.set_incremental_state(incremental_state, STATE, saved)
        rows = encoder_out["rows"][0] if encoder_out["rows"] else None
        if rows is None or (saved["rows"] is not None and torch.equal(rows, saved["rows"])):
            return saved
        items, counts = torch.unique_consecutive(rows, return_counts=True)
        if not counts.eq(counts[0]).all():
            items = rows
        saved["rows"] = rows
        of_all = saved["of_all"]
        is_all = torch.equal(items, torch.arange(len(of_all["keys"][0]), device=items.device))
        saved["source"] = of_all if is_all else _select(of_all, items)
        return saved

    def _newest_bias(self, saved: dict[str, Any], length: int) -> Tensor:
        """``[1, H, 1, length]``; the biases of all distances are computed once for many steps."""
        bias = saved["bias"]
        if bias is None or bias.size(1) < length:
            bias = saved["bias"] = self.relative_bias.newest(2 * length + 30)
        return bias[:, bias.size(1) - length :].unsqueeze(1).unsqueeze(0)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        saved = self.get_incremental_state(incremental_state, STATE)
        if saved is not None:
            saved["cache"].select(new_order)

    def max_positions(self) -> int:
        return self._max_positions


def _select(source: Any, items: Tensor) -> Any:
    """Items of tensors within lists and dictionaries."""
    if isinstance(source, dict):
        return {key: _select(x, items) for key, x in source.items()}
    if isinstance(source, (list, tuple)):
        return [_select(x, items) for x in source]
    return None if source is None else source.index_select(0, items)
