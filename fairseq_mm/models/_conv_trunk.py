"""Defines the trunk: the convolutional decoder of stories without its output layer.

It maps words to hidden states (Fan et al. 2018, sections 3.2 and 3.3). A layer is a causal
convolution with a gated linear unit, attention to the prompt (the source), and self-attention to
the story so far (the past).
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_mm.modules.attention import SourceAttention, project_sources
from fairseq_mm.modules.decoding_caches import join_rows, keeps_all, select_rows
from fairseq_mm.modules.linear import linear, normal_linear
from fairseq_mm.modules.multi_scale_self_attention import (
    KeyValueCache,
    MultiScaleSelfAttention,
    RowTimes,
)
from fairseq_mm.modules.positions import PositionedEmbedding


class CausalConvolution(nn.Module):
    """Convolution followed by a gated linear unit, [B, T, input_dim] -> [B, T, output_dim].

    Gehring et al. 2017, section 3.2; output t depends on the ``width`` inputs t - width + 1 to t.
    The initial weights' scale compensates for the dropout rate that the caller applies to the
    input.
    """

    def __init__(self, input_dim: int, output_dim: int, width: int, *, dropout: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * output_dim, input_dim, width))
        self.bias = nn.Parameter(torch.zeros(2 * output_dim))
        # Gehring et al. 2017, section 3.5: a gated linear unit quarters the variance of its input,
        # and dropout keeps a share of 1 - p.
        nn.init.normal_(self.weight, std=math.sqrt(4 * (1 - dropout) / (width * input_dim)))
        self.width = width
        self.input_dim = input_dim
        # A plain attribute, not a parameter or buffer: a state dict must have the same keys before
        # and after folding.
        self.step_weight: Optional[Tensor] = None

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, self.width - 1, 0)).transpose(1, 2)
        return F.glu(F.conv1d(x, self.weight, self.bias).transpose(1, 2), dim=2)

    def step(self, x: Tensor, window: Optional[Tensor]) -> tuple[Tensor, Tensor]:
        """Compute the output [B, output_dim] of the newest step, and the window for the next step.

        ``window`` [B, (width - 1) * input_dim] has the inputs of the steps before x [B, input_dim];
        None at the first step.
        """
        if window is None:
            window = x.new_zeros(x.size(0), (self.width - 1) * self.input_dim)
        # Flat, so that a step is a single product, computed by the fastest kernel of
        # :func:`linear`.
        window = torch.cat([window, x], dim=1)  # [B, width I], the oldest first
        weight = self.step_weight
        if weight is None:
            weight = self._as_matrix()
        return F.glu(linear(window, weight, self.bias), dim=1), window[:, self.input_dim :]

    def fold(self) -> None:
        with torch.no_grad():
            self.step_weight = self._as_matrix()

    def _as_matrix(self) -> Tensor:
        return self.weight.transpose(1, 2).flatten(1)  # [2 O, width I]

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "CausalConvolution":
        # A folded model may still be moved or cast (the hub interface of fairseq folds when it is
        # built), which reaches only parameters and buffers.
        super()._apply(fn, *args, **kwargs)
        if self.step_weight is not None:
            self.step_weight = fn(self.step_weight)
        return self


class Source(NamedTuple):
    """Output of the encoder for S source tokens: keys and values [B, S, E], and a padding mask.

    The mask is [B, S] bool, True at padding; None if padding is attended to.
    """

    keys: Tensor
    values: Tensor
    padding_mask: Optional[Tensor]

    def valid_mask(self) -> Optional[Tensor]:
        """Return a mask [B, 1, 1, S], False at padding; None if padding is attended to."""
        return None if self.padding_mask is None else ~self.padding_mask[:, None, None]


@dataclass
class Trace:
    """Attention weights of a forward pass, in lists with one tensor for each layer.

    Attributes:
        source: [B, heads, T, S] weights of S source tokens at each of T steps, for each layer that
            attends to the source.
        past: [B, heads, T, 1 + T] weights of the self-attention, for each layer that has one; key 0
            is a slot of zeros, key 1 + t is step t.
    """

    source: list[Tensor] = field(default_factory=list)
    past: list[Tensor] = field(default_factory=list)


@dataclass
class TrunkState:
    """State of a convolutional decoder's layers between two decoding steps.

    Attributes:
        source: Projected keys and values of the prompt for each layer; None for layers that do not
            attend to the prompt.
        valid_mask: [B, 1, 1, S] bool mask of S prompt tokens, see :meth:`Source.valid_mask`.
        caches: Keys and values of earlier steps for each layer; None for layers without
            self-attention.
        windows: Last inputs of each layer's convolution; None before the first step.
        rows: Number of rows of the batch.
        number: Number of tokens so far, in the longest row.
        numbers: [B] number of tokens of each row so far; None if all rows have ``number`` tokens.
    """

    source: list[Optional[tuple[Tensor, Tensor]]]
    valid_mask: Optional[Tensor]
    caches: list[Optional[KeyValueCache]]
    windows: list[Optional[Tensor]]
    rows: int = 0
    number: int = 0
    numbers: Optional[Tensor] = None

    def reorder(self, new_order: Tensor) -> None:
        # True at nearly every step of sampling, where rows never change places.
        if keeps_all(new_order, self.rows):
            return
        self.rows = len(new_order)
        self.source = select_rows(self.source, new_order)
        self.valid_mask = select_rows(self.valid_mask, new_order)
        self.windows = select_rows(self.windows, new_order)
        self.numbers = select_rows(self.numbers, new_order)
        for cache in self.caches:
            if cache is not None:
                cache.reorder(new_order)

    def join(self, other: "TrunkState") -> None:
        """Append the batch rows of another state, whose texts may be longer or shorter."""
        self.numbers = join_rows(self._count_tokens(), other._count_tokens())
        self.number = max(self.number, other.number)
        self.source = join_rows(self.source, other.source)
        if self.valid_mask is not None and other.valid_mask is not None:
            # Padded as its complement, because True is padding there.
            self.valid_mask = ~join_rows(~self.valid_mask, ~other.valid_mask)
        self.windows = join_rows(self.windows, other.windows)
        for cache, joining in zip(self.caches, other.caches):
            if cache is not None and joining is not None:
                cache.join(joining)
        self.rows += other.rows

    def _count_tokens(self) -> Tensor:
        if self.numbers is not None:
            return self.numbers
        window = next(window for window in self.windows if window is not None)
        return torch.full((self.rows,), self.number, device=window.device)


class ConvLayer(nn.Module):
    """One layer of the convolutional decoder: convolution, source attention and self-attention.

    Args:
        width: Kernel width of the convolution.
        embed_dim: Dimension of word embeddings and of the encoder's output.
        source_heads: Number of heads of the attention to the source; 0 for no such attention.
        self_attention: Attention to the story so far; None for no such attention.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        width: int,
        *,
        embed_dim: int,
        dropout: float,
        source_heads: int,
        self_attention: Optional[MultiScaleSelfAttention],
    ) -> None:
        super().__init__()
        self.residual_proj = None
        if input_dim != output_dim:
            self.residual_proj = normal_linear(input_dim, output_dim, input_dim**-0.5)
        self.dropout = nn.Dropout(dropout)
        self.convolution = CausalConvolution(input_dim, output_dim, width, dropout=dropout)
        self.source_attention = None
        if source_heads:
            self.source_attention = SourceAttention(
                output_dim, embed_dim, source_heads, dropout=dropout
            )
        self.self_attention = self_attention

    def forward(
        self,
        x: Tensor,
        embedding: Tensor,
        source: Optional[tuple[Tensor, Tensor]],
        valid_mask: Optional[Tensor],
        trace: Optional[Trace],
    ) -> Tensor:
        """Compute the layer's output [B, T, output_dim] from its input x [B, T, input_dim].

        ``embedding`` [B, T, embed_dim] are the word embeddings, which are added to the queries of
        the source attention, see :meth:`SourceAttention.forward` for ``source`` and ``valid_mask``.
        The attention weights are appended to the lists of ``trace``, unless it is None.
        """
        residual = x
        if self.residual_proj is not None:
            residual = linear(x, self.residual_proj.weight, self.residual_proj.bias)
        x = self.convolution(self.dropout(x))
        if self.source_attention is not None and source is not None:
            record = None if trace is None else trace.source
            x = self.source_attention(x, embedding, source, valid_mask, record)
        if self.self_attention is not None:
            x = self.self_attention(x, None if trace is None else trace.past)
        # Gehring et al. 2017, section 3.4: a sum of two terms has about twice the variance of one
        return (x + residual) * math.sqrt(0.5)

    def step(
        self,
        x: Tensor,
        embedding: Tensor,
        state: TrunkState,
        number: int,
        times: Optional[RowTimes],
    ) -> Tensor:
        """Compute the layer's output [B, output_dim] for one word from its input x [B, input_dim].

        ``number`` is the index of this layer in the lists of ``state``, which is updated. ``times``
        has each row's number of earlier words; it is None if all rows have equally many.
        """
        residual = x
        if self.residual_proj is not None:
            residual = linear(x, self.residual_proj.weight, self.residual_proj.bias)
        # Dropout stays in place, because fairseq can keep it on in generation (--retain-dropout).
        x, state.windows[number] = self.convolution.step(self.dropout(x), state.windows[number])
        source, cache = state.source[number], state.caches[number]
        if self.source_attention is not None and source is not None:
            x = self.source_attention.step(x, embedding, source, state.valid_mask)
        if self.self_attention is not None and cache is not None:
            x = self.self_attention.step(x, cache, times)
        return (x + residual) * math.sqrt(0.5)


class ConvTrunk(nn.Module):
    """Convolutional decoder without output layer: embeddings, convolutions and attention.

    Args:
        layers: (channels, kernel width) of each layer.
        embed_dim: Dimension of word embeddings, encoder output, queries, keys and values.
        out_dim: Dimension of the hidden states that the trunk returns.
        table_rows: Number of rows of the position embedding: maximum length of a text + padding
            index + 1.
        source_attention: For each layer, True if it attends to the source.
        self_attention: For each layer, True if it attends to the story so far.
        is_gated: See :class:`MultiScaleSelfAttention`, as for ``is_multi_scale``.
    """

    def __init__(
        self,
        num_types: int,
        padding_idx: int,
        layers: list[tuple[int, int]],
        *,
        embed_dim: int,
        out_dim: int,
        dropout: float,
        table_rows: int,
        source_attention: list[bool],
        source_heads: int,
        self_attention: list[bool],
        self_heads: int,
        is_gated: bool,
        is_multi_scale: bool,
    ) -> None:
        super().__init__()
        self.embedding = PositionedEmbedding(num_types, embed_dim, padding_idx, table_rows)
        channels = layers[0][0]
        std = math.sqrt((1 - dropout) / embed_dim)
        self.input_proj = normal_linear(embed_dim, channels, std)
        self.layers: Any = nn.ModuleList()
        for number, (out_channels, width) in enumerate(layers):
            attention = None
            if self_attention[number]:
                attention = MultiScaleSelfAttention(
                    out_channels,
                    embed_dim,
                    self_heads,
                    is_gated=is_gated,
                    is_multi_scale=is_multi_scale,
                )
            self.layers.append(
                ConvLayer(
                    channels,
                    out_channels,
                    width,
                    embed_dim=embed_dim,
                    dropout=dropout,
                    source_heads=source_heads if source_attention[number] else 0,
                    self_attention=attention,
                )
            )
            channels = out_channels
        self.output_proj = normal_linear(channels, out_dim, channels**-0.5)
        self.dropout = nn.Dropout(dropout)
        self.out_dim = out_dim

    def forward(
        self, tokens: Tensor, source: Optional[Source], trace: Optional[Trace] = None
    ) -> Tensor:
        """Compute hidden states [B, T, out_dim] of tokens [B, T], the start token first.

        ``source`` is None for a language model. Attention weights are appended to ``trace``, unless
        it is None.
        """
        embedding = self.dropout(self.embedding(tokens))  # [B, T, E]
        x = linear(embedding, self.input_proj.weight, self.input_proj.bias)  # [B, T, C]
        valid_mask = None if source is None else source.valid_mask()
        for layer, projected in zip(self.layers, self._project(source)):
            x = layer(x, embedding, projected, valid_mask, trace)
        return linear(x, self.output_proj.weight, self.output_proj.bias)

    def begin(self, source: Optional[Source]) -> TrunkState:
        caches: list[Optional[KeyValueCache]] = [
            None if layer.self_attention is None else layer.self_attention.new_cache()
            for layer in self.layers
        ]
        valid_mask = None if source is None else source.valid_mask()
        # Projected once per text: the source does not change between steps.
        projected = self._project(source)
        return TrunkState(projected, valid_mask, caches, windows=[None] * len(caches))

    def _project(self, source: Optional[Source]) -> list[Optional[tuple[Tensor, Tensor]]]:
        attentions = [layer.source_attention for layer in self.layers]
        attending = [attention for attention in attentions if attention is not None]
        if source is None or not attending:
            return [None] * len(attentions)
        projected = iter(project_sources(attending, source.keys, source.values))
        return [None if attention is None else next(projected) for attention in attentions]

    def step(self, tokens: Tensor, number: int, state: TrunkState) -> Tensor:
        """Compute hidden states [B, out_dim] of the newest tokens [B], and update the state.

        ``number`` is the number of tokens of the longest text so far, with the start token and the
        newest token.
        """
        state.rows, state.number = tokens.numel(), number
        times = None
        if state.numbers is not None:
            times = RowTimes(state.numbers)
            state.numbers = state.numbers + 1
            for cache in state.caches:
                # The longest row may have left.
                if cache is not None:
                    cache.num_times = number - 1
        positions = number if state.numbers is None else state.numbers
        embedding = self.dropout(self.embedding.step(tokens, positions))
        x = linear(embedding, self.input_proj.weight, self.input_proj.bias)
        for layer_number, layer in enumerate(self.layers):
            x = layer.step(x, embedding, state, layer_number, times)
        return linear(x, self.output_proj.weight, self.output_proj.bias)

    def fold(self) -> None:
        """Precompute, for inference, the matrices that depend only on the weights."""
        for module in self.modules():
            fold = getattr(module, "fold", None)
            if fold is not None and module is not self:
                fold()

    def max_positions(self) -> int:
        return self.embedding.max_positions()
