"""Defines the transformer decoder of Transtory-decoder and Transtory-full.

A word attends only to words of its own sentence, and to images.
"""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_mm.models._bases import FeatureDecoder
from fairseq_mm.models._image_sequence import encoder_output
from fairseq_mm.modules.attention import attend, attention_weights, merge_heads, split_heads
from fairseq_mm.modules.decoding_caches import SentenceCache, select_rows
from fairseq_mm.modules.positions import (
    next_positions,
    select_sentence_vectors,
    sentence_positions,
    sinusoids,
)
from fairseq_mm.modules.transformer_layer import FeedForward, SelfAttention

STATE = "sentence_decoder"
# Values of the buffer `version`. Checkpoints from before the reversed order have no such buffer.
SAME_FREQUENCIES, REVERSED_FREQUENCIES = 1, 2


class CurrentImageAttention(nn.Module):
    """Multi-head attention of each word to a single vector, the image vector of its sentence."""

    # A softmax over one value is 1, so queries and keys would have no effect and have no weights.

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.value_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.value_proj.weight)
        nn.init.zeros_(self.value_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def prepare(self, vectors: Tensor) -> list[Tensor]:
        """Project image vectors [B, 5, D] once for all words."""
        values = self.value_proj(vectors)
        # The output projection commutes with the selection of a sentence unless weights are
        # dropped, so it then runs on five vectors and not on every word.
        return [values if self._drops_weights else self.out_proj(values)]

    @property
    def _drops_weights(self) -> bool:
        return self.training and self.dropout > 0

    def forward(
        self, x: Tensor, prepared: list[Tensor], sentences: Tensor, image_padding_mask: Tensor
    ) -> tuple[Tensor, Optional[Tensor]]:
        """Compute the attention's output [B, T, D]; the second result is None, because all weights
        are 1.
        """
        read = select_sentence_vectors(prepared[0], sentences)
        if self._drops_weights:
            B, T = sentences.shape
            # PyTorch drops attention weights for each head and word; the one weight here is 1.
            weights = F.dropout(read.new_ones(B, self.num_heads, T, 1), self.dropout)
            read = self.out_proj(merge_heads(weights * split_heads(read, self.num_heads)))
        return read, None


class AllImageAttention(nn.Module):
    """Multi-head attention of each word to the vectors of all five images."""

    def __init__(self, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.query_proj = nn.Linear(dim, dim)
        self.key_proj = nn.Linear(dim, dim)
        self.value_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        for layer in (self.query_proj, self.key_proj, self.value_proj):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.out_proj.bias)

    def prepare(self, vectors: Tensor) -> list[Tensor]:
        return [
            split_heads(self.key_proj(vectors), self.num_heads),
            split_heads(self.value_proj(vectors), self.num_heads),
        ]

    def forward(
        self, x: Tensor, prepared: list[Tensor], sentences: Tensor, image_padding_mask: Tensor
    ) -> tuple[Tensor, Optional[Tensor]]:
        """Compute the output [B, T, D], and weights [B, T, 5], means over the heads."""
        keys, values = prepared
        queries = split_heads(self.query_proj(x), self.num_heads)
        weights = attention_weights(queries, keys, ~image_padding_mask[:, None, None])
        dropped = F.dropout(weights, self.dropout, self.training)
        return self.out_proj(merge_heads(torch.matmul(dropped, values))), weights.mean(dim=1)


class SentenceLayer(nn.Module):
    """Post-norm transformer layer of self-attention, attention to images and feed-forward layer.

    ``images`` is :class:`CurrentImageAttention` or :class:`AllImageAttention`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        inner_dim: int,
        dropout: float,
        attention_dropout: float,
        images: nn.Module,
    ) -> None:
        super().__init__()
        self.self_attention = SelfAttention(dim, num_heads, attention_dropout)
        self.self_attention_norm = nn.LayerNorm(dim)
        self.pictures = images
        self.pictures_norm = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, inner_dim, dropout)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        attended: Tensor,
        prepared: list[Tensor],
        sentences: Tensor,
        image_padding_mask: Tensor,
    ) -> tuple[Tensor, Optional[Tensor]]:
        """Compute the layer's output [B, T, D], and attention weights [B, T, 5] of the images or
        None.

        Args:
            x: [B, T, D] input of the layer.
            attended: [B, T, D] output of the layer's ``self_attention`` for x.
            prepared: Image vectors, as projected by the attention to images.
            sentences: [B, T] index of each word's sentence, from 0.
            image_padding_mask: [B, 5] bool, True at missing images.
        """
        x = self.self_attention_norm(x + self.dropout(attended))
        context, weights = self.pictures(x, prepared, sentences, image_padding_mask)
        x = self.pictures_norm(x + self.dropout(context))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x))), weights


class SentenceDecoder(FeatureDecoder):
    """Transformer whose words attend to the words of their own sentence and to images.

    Args:
        separator: Index of the token that separates sentences.
        sees_all_images: True if words attend to all images; False for only the sentence's.
        encodes_sentence: True to add an encoding of the sentence's index to each word.
    """

    def __init__(
        self,
        dictionary: Any,
        separator: int,
        cfg: Any,
        *,
        sees_all_images: bool,
        encodes_sentence: bool,
    ) -> None:
        super().__init__(dictionary)
        self.separator = separator
        self.encodes_sentence = encodes_sentence
        self.reverses_frequencies = True
        if encodes_sentence:
            self.register_buffer("version", torch.tensor([REVERSED_FREQUENCIES]))
        dim, num_heads, dropout = cfg.embedding_dim, cfg.decoder_attention_heads, cfg.dropout
        self.embedding = nn.Embedding(len(dictionary), dim, dictionary.pad())
        self.embedding_dropout = nn.Dropout(cfg.embedding_dropout)
        # one rate for all by default, as in nn.TransformerDecoderLayer
        attention_dropout = cfg.attention_dropout
        if attention_dropout is None:
            attention_dropout = dropout
        attention = AllImageAttention if sees_all_images else CurrentImageAttention
        self.layers: Any = nn.ModuleList(
            SentenceLayer(
                dim,
                num_heads,
                cfg.decoder_ffn_dim,
                dropout,
                attention_dropout,
                attention(dim, num_heads, attention_dropout),
            )
            for _ in range(cfg.decoder_layers)
        )
        self.output_proj = nn.Linear(dim, len(dictionary))
        for layer in (self.embedding, self.output_proj):
            # U(-0.1, 0.1) for embedding and output, as in the released code.
            nn.init.uniform_(layer.weight, -0.1, 0.1)
        nn.init.zeros_(self.output_proj.bias)
        with torch.no_grad():
            self.embedding.weight[dictionary.pad()].zero_()

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[dict[str, list[Tensor]]],
        incremental_state: Optional[dict] = None,
    ) -> tuple[Tensor, dict[str, Optional[Tensor]]]:
        """Compute features [B, T, D], or [B, 1, D] when decoding incrementally.

        The second result is a dict. The entry ``image_attention`` has the last layer's attention
        weights [B, T, 5] over the images, or is None if words attend to a single image.
        """
        vectors, image_padding_mask = encoder_output(encoder_out)
        if incremental_state is not None:
            return self._step(
                prev_output_tokens[:, -1], vectors, image_padding_mask, incremental_state
            )
        sentences, positions = sentence_positions(prev_output_tokens, self.separator)
        T = prev_output_tokens.size(1)
        # All sentences of a story are decoded in one pass of training; the mask keeps them apart.
        is_same = sentences.unsqueeze(2) == sentences.unsqueeze(1)
        is_before = torch.ones(T, T, dtype=torch.bool, device=is_same.device).tril()
        attention_mask = (is_same & is_before).unsqueeze(1)  # [B, 1, T, T]
        x = self._embed(prev_output_tokens, sentences, positions)
        weights = None
        for layer in self.layers:
            attended = layer.self_attention(x, attention_mask)
            prepared = layer.pictures.prepare(vectors)
            x, weights = layer(x, attended, prepared, sentences, image_padding_mask)
        return x, {"attn": None, "image_attention": weights}

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        if self.encodes_sentence:
            # Checkpoints from before the reversed order decode as they were trained.
            version = state_dict.setdefault(f"{name}.version", torch.tensor([SAME_FREQUENCIES]))
            self.reverses_frequencies = int(version) >= REVERSED_FREQUENCIES
        super().upgrade_state_dict_named(state_dict, name)

    def encoding(self, sentences: Tensor, positions: Tensor) -> Tensor:
        """Compute the sinusoidal encodings [..., D] float32 of words at ``positions`` in
        ``sentences``.

        Both are [...] indices from 0; ``sentences`` are encoded only with ``encodes_sentence``.
        """
        dim = self.embedding.embedding_dim
        encoding = sinusoids(positions, dim)
        if not self.encodes_sentence:
            return encoding
        sentence_encoding = sinusoids(sentences, dim)
        # Reversed channels: high frequencies of one encoding meet low frequencies of the other.
        # Otherwise word 3 of sentence 1 and word 1 of sentence 3 would have equal codes.
        if self.reverses_frequencies:
            sentence_encoding = sentence_encoding.flip(-1)
        return encoding + sentence_encoding

    def _embed(self, tokens: Tensor, sentences: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.embedding_dropout(x + self.encoding(sentences, positions).to(x.dtype))

    def _step(
        self, tokens: Tensor, vectors: Tensor, image_padding_mask: Tensor, incremental_state: dict
    ) -> tuple[Tensor, dict[str, Optional[Tensor]]]:
        """Compute :meth:`extract_features` for one new word per row, ``tokens`` [B]."""
        saved = self.get_incremental_state(incremental_state, STATE)
        before = None if saved is None else (saved["sentence"], saved["position"])
        sentence, position = next_positions(before, tokens, self.separator)
        if saved is None:
            prepared = [layer.pictures.prepare(vectors) for layer in self.layers]
            cache = self._empty_cache(vectors)
        else:
            prepared, cache = saved["prepared"], saved["cache"]
        cache.reserve(position)
        attention_mask = cache.attention_mask(position)
        x = self._embed(tokens.unsqueeze(1), sentence.unsqueeze(1), position.unsqueeze(1))
        weights = None
        for i, layer in enumerate(self.layers):
            query, key, value = layer.self_attention.project(x)
            keys = cache.write(2 * i, key.squeeze(2), position)
            values = cache.write(2 * i + 1, value.squeeze(2), position)
            attended = merge_heads(attend(query, keys, values, attention_mask))
            attended = layer.self_attention.out_proj(attended)
            x, weights = layer(x, attended, prepared[i], sentence.unsqueeze(1), image_padding_mask)
        state = {"sentence": sentence, "position": position, "prepared": prepared, "cache": cache}
        self.set_incremental_state(incremental_state, STATE, state)
        return x, {"attn": None, "image_attention": weights}

    def _empty_cache(self, like: Tensor) -> SentenceCache:
        num_heads = self.layers[0].self_attention.num_heads
        shape = (len(like), num_heads, like.size(-1) // num_heads)
        return SentenceCache.empty([shape] * (2 * len(self.layers)), like)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        saved = self.get_incremental_state(incremental_state, STATE)
        if saved is None:
            return
        # The cache reorders itself in place; every other entry is a tensor or a list of tensors.
        saved["cache"].select(new_order)
        state = {k: x if k == "cache" else select_rows(x, new_order) for k, x in saved.items()}
        self.set_incremental_state(incremental_state, STATE, state)
