"""T5, a text-to-text transformer (``--arch t5_small``, ``t5_base``, ``t5_large``).

Raffel et al. Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer.
JMLR 2020, section 2.1. It is the text-only baseline of Yu et al. 2021, and the backbone of VG-T5.

- A norm, which divides by the root mean square and has no bias, precedes each sub-layer and follows
  the last layer of encoder and decoder.
- Attention scores are not scaled. A learned bias for each head and each bucket (range of distances
  between tokens) is added to the scores, the same bias in all layers. There are 32 buckets, for
  distances up to 128; the buckets of the decoder are only for distances to earlier tokens. There
  are no other position embeddings. No linear layer has a bias.
- Encoder, decoder and output layer share one embedding of dimension D, and the inputs of the output
  layer are scaled by D^-0.5.
- The decoder's start token is the padding token (``start_index``), so the decoder masks no padding.
  No mask is needed: padding is on the right, and each token sees only earlier tokens.
- ``--feed-forward gated_gelu --untied-output`` is T5 version 1.1 and FLAN-T5, in which feed-forward
  layers have a gate, and the output layer has its own matrix.

In a float16 model the residual stream is float32, because its values leave the range of float16
(65504) in the published models. Norms and softmax are float32 as well, and ``modules/t5_layers.py``
keeps matrix products within the range, so that no value has to be clamped.

``fairseq-mm convert`` converts Hugging Face's T5 to a checkpoint, a dictionary and a sentencepiece
model.

Differs from Yu et al. 2021: they write of six layers in T5-base's encoder and decoder (section
4.2); T5-base has twelve each, T5-small six.
"""

from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqEncoder, register_model
from torch import Tensor, nn

from fairseq_mm.compat.options import option
from fairseq_mm.errors import UserError
from fairseq_mm.models._bases import EncoderOut, FeatureDecoder, TextModel, check_one_dictionary
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import Provenance, list_words
from fairseq_mm.modules.decoding_caches import BeamCache, group_rows, select_rows
from fairseq_mm.modules.linear import linear
from fairseq_mm.modules.packed_weights import shrink_cached
from fairseq_mm.modules.t5_layers import RelativeBias, RMSNorm, T5Attention, T5FeedForward

STATE = "t5"
FeedForward: Any = ChoiceEnum(("relu", "gated_gelu"))


@dataclass
class T5Config(FairseqDataclass):
    """Options of T5. The default sizes follow T5-base (Raffel et al. 2020, section 3.1.1)."""

    model_dim: int = option(768, "Dimension of embeddings and layers.")
    attention_heads: int = option(12, "Number of heads of every attention.")
    head_dim: int = option(64, "Dimension of each attention head (d_kv).")
    ffn_dim: int = option(3072, "Dimension of the feed-forward layers.")
    encoder_layers: int = option(12, "Number of encoder layers.")
    decoder_layers: int = option(12, "Number of decoder layers.")
    dropout: float = option(
        0.1,
        "Dropout probability of embeddings, sub-layers, attention weights and inside feed-forward "
        "layers.",
    )
    feed_forward: FeedForward = option(
        "relu", "Feed-forward layer: relu as in T5, or gated_gelu as in T5 1.1 and FLAN-T5."
    )
    untied_output: bool = option(
        False, "Use an output layer with its own matrix and unscaled inputs, as T5 1.1 and FLAN-T5."
    )
    relative_buckets: int = option(
        32,
        "Number of buckets (ranges of distances between tokens) with a learned bias.",
        # each direction has half of the buckets, and half of these hold a single distance each
        least=4,
        multiple=4,
    )
    max_distance: int = option(128, "Distance from which on all distances are in one bucket.")
    norm_epsilon: float = option(1e-6, "Number added to mean squares before the root.")
    max_source_positions: int = option(1024, "Maximum length of a source, in tokens.")
    max_target_positions: int = option(1024, "Maximum length of a target, in tokens.")


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
    """Pre-norm encoder layer of self-attention and feed-forward network (Raffel et al. 2020,
    section 2.1).
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.self_attention_norm = _norm(cfg)
        self.self_attention = _attention(cfg)
        self.feed_forward_norm = _norm(cfg)
        self.feed_forward = _feed_forward(cfg)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Compute the layer: [B, S, D] -> [B, S, D].

        ``bias`` is added to the attention scores. It broadcasts to [B, heads, S, S] and is ``-inf``
        at padding.
        """
        normed = self.self_attention_norm(x)
        query = self.self_attention.queries(normed)
        key, value = self.self_attention.keys_and_values(normed)
        x = x + self.dropout(self.self_attention(query, key, value, bias))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class T5DecoderLayer(nn.Module):
    """Pre-norm decoder layer: self-attention, attention to the source, feed-forward network."""

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

        Rows are the beams of a search, items the examples of the batch; equally many neighbouring
        rows share an item. ``source`` has the keys and values of the encoder's output, [items,
        heads, S, head_dim] each. ``source_bias`` [items, 1, 1, S] is ``-inf`` at padding.
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
        """Compute the layer: [rows, T, D] -> [rows, T, D]; when decoding incrementally T is 1.

        Args:
            bias: Bias of the self-attention's scores. Without ``cached``, it broadcasts to
                [rows, heads, T, T]; with ``cached``, it is a result of :meth:`BeamCache.mask_bias`.
            source: Keys and values of the encoder's output, see :meth:`attend_source`.
            cached: When decoding incrementally, the cache of keys and values of all layers, and the
                index of this layer in the cache; otherwise None.
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
        """Encode sources ``src_tokens`` [B, S], padded on either side.

        Returns a dict of lists: ``encoder_out`` [S, B, D]; ``encoder_padding_mask`` [B, S] bool
        (empty if there is no padding); and ``rows``, the index of the source of each row (beam),
        empty until :meth:`reorder_encoder_out` is called. The other keys, which fairseq expects,
        have empty lists.
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

        VG-T5 overrides this method and fuses x with ``video``, the encoded frames.
        """
        return x

    def fuse_output(self, x: Tensor, video: Any) -> Tensor:
        """Return the output x [B, S, D] of the final norm unchanged; VG-T5 overrides this, too."""
        return x

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        rows = encoder_out["rows"]
        # fairseq reorders at every step of a search, and the beams of an item can share its
        # tensors.
        return {**encoder_out, "rows": [rows[0].index_select(0, new_order) if rows else new_order]}

    def max_positions(self) -> int:
        return self._max_positions


class T5Decoder(FeatureDecoder):
    """Decoder of T5. The encoder uses the same word embedding, ``embedding``.

    Without the output layer ``output``, the matrix of the embedding is the output layer, and its
    inputs, of dimension D, are scaled by D^-0.5.
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
        """Compute features [B, T, D], or [B, 1, D] when decoding incrementally, and ``{"attn":
        None}``.

        The first token is the padding token, which T5 uses as start token. Padding is on the right;
        its outputs are undefined. :meth:`fuse` of VG-T5 records its attention in ``trace``, a
        :class:`FusionTrace`, unless it is None.
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

        VG-T5 overrides this method: it fuses x with the frames in ``source``.
        """
        return x

    def output_layer(self, features: Tensor, **unused: Any) -> Tensor:
        if self.output_proj is not None:
            return linear(features, self.output_proj.weight)
        # Embeddings of T5 have a standard deviation of 1, so a tied output layer needs the scale.
        return linear(features * features.size(-1) ** -0.5, self.embedding.weight)

    def _source(self, encoder_out: EncoderOut) -> dict[str, Any]:
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


def build_t5_parts(
    cfg: Any, task: Any, encoder: Callable[..., Any], decoder: Callable[..., Any]
) -> tuple[Any, Any]:
    """Build an encoder and a decoder with a common word embedding.

    ``encoder`` and ``decoder`` are :class:`T5Encoder` and :class:`T5Decoder`, or functions with the
    same arguments.
    """
    if cfg.max_distance <= cfg.relative_buckets // 2:
        raise UserError(
            f"--relative-buckets must be less than twice --max-distance ({cfg.max_distance}), but "
            f"is {cfg.relative_buckets}."
        )
    check_one_dictionary(task)
    dictionary = task.target_dictionary
    # no padding_idx: the padding token is the start token, whose embedding must learn
    embedding = nn.Embedding(len(dictionary), cfg.model_dim)
    nn.init.normal_(embedding.weight)
    output: Optional[nn.Linear] = None
    if cfg.untied_output:
        output = nn.Linear(cfg.model_dim, len(dictionary), bias=False)
        nn.init.normal_(output.weight, std=cfg.model_dim**-0.5)
    return (
        encoder(task.source_dictionary, embedding, cfg),
        decoder(dictionary, embedding, cfg, output=output),
    )


@register_model("t5", dataclass=T5Config)
class T5Model(TextModel):
    """T5 model. Its start token, ``start_index`` of the generator, is the padding token."""

    @property
    def start_index(self) -> int:
        return self.decoder.dictionary.pad()

    @classmethod
    def build_model(cls, cfg: T5Config, task: Any) -> "T5Model":
        encoder, decoder = build_t5_parts(cfg, task, T5Encoder, T5Decoder)
        words = list_words(task.target_dictionary)
        subwords = getattr(task, "subwords_state", None)
        return cls(encoder, decoder, Provenance(words, {}, 0, words, subwords=subwords))


def _sizes(model_dim: int, attention_heads: int, ffn_dim: int, layers: int) -> dict[str, int]:
    return {
        "model_dim": model_dim,
        "attention_heads": attention_heads,
        "head_dim": 64,
        "ffn_dim": ffn_dim,
        "encoder_layers": layers,
        "decoder_layers": layers,
    }


# the published sizes, of 60, 220 and 770 million parameters
SMALL = _sizes(512, 8, 2048, 6)
BASE = _sizes(768, 12, 3072, 12)
LARGE = _sizes(1024, 16, 4096, 24)
TINY = {
    "model_dim": 12,
    "attention_heads": 2,
    "head_dim": 5,
    "ffn_dim": 14,
    "encoder_layers": 3,
    "decoder_layers": 2,
}
register_presets(
    "t5",
    {
        "t5_small": SMALL,
        "t5_base": BASE,
        "t5_large": LARGE,
        "t5_tiny": TINY,
    },
)
