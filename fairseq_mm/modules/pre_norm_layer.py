"""Defines pre-norm transformer layers that attend to any number of sources."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_mm.modules.additive_attention import ModalityAttention
from fairseq_mm.modules.attention import attend, attention_weights, merge_heads, split_heads
from fairseq_mm.modules.transformer_layer import FeedForward, SelfAttention


class PreNormEncoderLayer(nn.Module):
    """Pre-norm encoder layer: ``x + attention(norm(x))``, then ``x + feed_forward(norm(x))``."""

    def __init__(self, dim: int, num_heads: int, inner_dim: int, dropout: float) -> None:
        super().__init__()
        self.self_attention = SelfAttention(dim, num_heads)
        self.self_attention_norm = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, inner_dim, dropout)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.dropout = dropout

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        """Compute the layer [B, N, dim]; ``padding_mask`` [B, N] is True at padding."""
        rate = self.dropout if self.training else 0.0
        parts = self.self_attention.project(self.self_attention_norm(x))
        attended = attend(*parts, ~padding_mask[:, None, None], dropout=rate)
        x = x + F.dropout(self.self_attention.out_proj(merge_heads(attended)), rate)
        return x + F.dropout(self.feed_forward(self.feed_forward_norm(x)), rate)


class SourceAttention(nn.Module):
    """Multi-head attention to a source, whose dimension may differ from the queries' dimension."""

    def __init__(self, dim: int, source_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query_proj = nn.Linear(dim, dim)
        # no bias, because it would add the same number to all scores of a softmax
        self.key_proj = nn.Linear(source_dim, dim, bias=False)
        self.value_proj = nn.Linear(source_dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        for layer in (self.query_proj, self.key_proj, self.value_proj, self.out_proj):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def project(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Project a source [B, N, source_dim] to keys and values, [B, heads, N, head_dim] each."""
        return (
            split_heads(self.key_proj(source), self.num_heads),
            split_heads(self.value_proj(source), self.num_heads),
        )

    def forward(
        self,
        x: Tensor,
        projected: tuple[Tensor, Tensor],
        padding_mask: Tensor,
        *,
        dropout: float = 0.0,
        needs_weights: bool = False,
    ) -> tuple[Tensor, Optional[Tensor]]:
        """Attend from queries x [B, T, dim] to a source of N elements.

        Returns the result [B, T, dim], and the mean weights [B, T, N] over the heads, or None
        without ``needs_weights``, with which ``dropout`` must be 0.
        """
        query = split_heads(self.query_proj(x), self.num_heads)
        attention_mask = ~padding_mask[:, None, None]
        if needs_weights:
            # The fused kernel returns no weights, so they are computed here where an inspection
            # asks for them.
            weights = attention_weights(query, projected[0], attention_mask)
            context = torch.matmul(weights, projected[1])
            return self.out_proj(merge_heads(context)), weights.mean(dim=1)
        context = attend(query, *projected, attention_mask, dropout=dropout)
        return self.out_proj(merge_heads(context)), None


class LayerTrace(NamedTuple):
    """Attention weights of a decoder layer: [B, T, N] for each source, averaged over the heads.

    ``modality_weights`` [B, T, sources] are None if there is only one source.
    """

    weights: list[Tensor]
    modality_weights: Optional[Tensor]


class PreNormDecoderLayer(nn.Module):
    """Pre-norm decoder layer: self-attention, attention to every source, feed-forward.

    If there are several sources, :class:`ModalityAttention` combines the results of attending to
    each source. Both levels have the same query, the normalised state of the decoder.
    """

    def __init__(
        self, dim: int, num_heads: int, inner_dim: int, dropout: float, source_dims: Sequence[int]
    ) -> None:
        super().__init__()
        self.self_attention = SelfAttention(dim, num_heads)
        self.self_attention_norm = nn.LayerNorm(dim)
        self.source_attentions: Any = nn.ModuleList(
            SourceAttention(dim, source_dim, num_heads) for source_dim in source_dims
        )
        self.source_attention_norm = nn.LayerNorm(dim)
        self.modality_attention = None
        if len(source_dims) > 1:
            self.modality_attention = ModalityAttention(
                dim, dim, dim, num_modalities=len(source_dims)
            )
        self.feed_forward = FeedForward(dim, inner_dim, dropout)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.dropout = dropout

    def project(self, sources: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Project each source [B, N, source_dim] to its keys and values."""
        # zip ends with the attentions: a layer with one source reads only the first.
        return [attention.project(x) for attention, x in zip(self.source_attentions, sources)]

    def forward(
        self,
        x: Tensor,
        projected: Sequence[tuple[Tensor, Tensor]],
        padding_masks: Sequence[Tensor],
        *,
        past: Optional[tuple[Tensor, Tensor]] = None,
        needs_weights: bool = False,
    ) -> tuple[Tensor, tuple[Tensor, Tensor], Optional[LayerTrace]]:
        """Compute the layer for new words, which attend to all earlier words, themselves and the
        sources.

        Args:
            x: [B, T, dim] states of the new words.
            projected: Keys and values of the sources, see :meth:`project`.
            padding_masks: [B, N] bool for each source, True at padding.
            past: Self-attention keys and values [B, heads, P, head_dim] of the P words before x;
                None at the first words.

        Returns:
            The output [B, T, dim]; the self-attention keys and values of all words so far; and the
                attention weights for the sources, or None without ``needs_weights``.
        """
        rate = self.dropout if self.training else 0.0
        query, key, value = self.self_attention.project(self.self_attention_norm(x))
        T = query.size(-2)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=-2), torch.cat([past[1], value], dim=-2)
        # a single new word may attend to all words, so only several new words need a mask
        attention_mask = None
        if T > 1:
            attention_mask = torch.ones(T, key.size(-2), dtype=torch.bool, device=x.device)
            attention_mask = attention_mask.tril(key.size(-2) - T)
        attended = attend(query, key, value, attention_mask, dropout=rate)
        x = x + F.dropout(self.self_attention.out_proj(merge_heads(attended)), rate)
        context, trace = self._attend_to_sources(x, projected, padding_masks, rate, needs_weights)
        x = x + F.dropout(context, rate)
        x = x + F.dropout(self.feed_forward(self.feed_forward_norm(x)), rate)
        return x, (key, value), trace

    def _attend_to_sources(
        self,
        x: Tensor,
        projected: Sequence[tuple[Tensor, Tensor]],
        padding_masks: Sequence[Tensor],
        rate: float,
        needs_weights: bool,
    ) -> tuple[Tensor, Optional[LayerTrace]]:
        # One norm for all sources: both levels of attention compare with the same query.
        query = self.source_attention_norm(x)
        contexts, weights = [], []
        for attention, source, mask in zip(self.source_attentions, projected, padding_masks):
            context, weight = attention(
                query, source, mask, dropout=rate, needs_weights=needs_weights
            )
            contexts.append(context)
            weights.append(weight)
        context, modality_weights = contexts[0], None
        if self.modality_attention is not None:
            context, modality_weights = self.modality_attention(query, contexts)
        return context, LayerTrace(weights, modality_weights) if needs_weights else None
