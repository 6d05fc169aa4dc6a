"""Encoder and decoder of convolutional story models (Fan et al. 2018; Gehring et al. 2017)."""

import math
from typing import Any, Optional

import torch.nn.functional as F
from fairseq.modules import GradMultiply
from torch import Tensor, nn

from fairseq_mm.models._bases import BatchFirstEncoder, EncoderOut, IncrementalDecoder
from fairseq_mm.models._conv_trunk import ConvTrunk, Source, Trace, TrunkState
from fairseq_mm.modules.linear import linear, normal_linear
from fairseq_mm.modules.positions import PositionedEmbedding

STATE = "trunks"


class ConvEncoder(BatchFirstEncoder):
    """Convolutional encoder of a prompt (Gehring et al. 2017, section 3.2).

    Args:
        layers: (channels, kernel width) of each layer.
        embed_dim: E, dimension of the word embeddings and of the output.
        table_rows: Number of rows of the position embedding: maximum length of a prompt + padding
            index + 1.
        num_attention_layers: Number of decoder layers that attend to the prompt; the gradient of
            the encoder's output is divided by twice this number.
    """

    def __init__(
        self,
        dictionary: Any,
        layers: list[tuple[int, int]],
        *,
        embed_dim: int,
        dropout: float,
        table_rows: int,
        num_attention_layers: int,
    ) -> None:
        super().__init__(dictionary)
        self.padding_idx = dictionary.pad()
        self.embedding = PositionedEmbedding(
            len(dictionary), embed_dim, self.padding_idx, table_rows
        )
        channels = layers[0][0]
        std = math.sqrt((1 - dropout) / embed_dim)
        self.input_proj = normal_linear(embed_dim, channels, std)
        self.residual_projs = nn.ModuleList()
        self.convolutions: Any = nn.ModuleList()
        for out_channels, width in layers:
            if channels == out_channels:
                self.residual_projs.append(nn.Identity())
            else:
                std = math.sqrt(1 / channels)
                self.residual_projs.append(normal_linear(channels, out_channels, std))
            convolution = nn.Conv1d(channels, 2 * out_channels, width)
            # Gehring et al. 2017, section 3.5: a gated linear unit quarters the variance of its
            # input.
            nn.init.normal_(convolution.weight, std=math.sqrt(4 * (1 - dropout) / width / channels))
            assert convolution.bias is not None
            nn.init.zeros_(convolution.bias)
            self.convolutions.append(convolution)
            channels = out_channels
        self.output_proj = normal_linear(channels, embed_dim, math.sqrt(1 / channels))
        self.dropout = nn.Dropout(dropout)
        # Gehring et al. 2017, section 3.4: keys and values get a gradient from each attention layer
        # of the decoder, and their sum would be too large.
        self.gradient_scale = 1 / (2 * max(1, num_attention_layers))

    def forward(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None) -> EncoderOut:
        """Encode prompts ``src_tokens`` [B, S], padded on either side.

        Returns a dict of lists of one tensor: ``keys`` [B, S, E], the projected output of the last
        layer, zero at padding; ``values`` [B, S, E], the scaled sum of keys and input embeddings;
        ``padding_mask`` [B, S] bool, True at padding.
        """
        padding_mask = src_tokens.eq(self.padding_idx)
        embedding = self.dropout(self.embedding(src_tokens))  # [B, S, E]
        x = linear(embedding, self.input_proj.weight, self.input_proj.bias)  # [B, S, C]
        for residual_proj, convolution in zip(self.residual_projs, self.convolutions):
            residual = x
            if isinstance(residual_proj, nn.Linear):
                residual = linear(x, residual_proj.weight, residual_proj.bias)
            # Zeroed before each convolution: otherwise words at the border would read what earlier
            # layers computed from padding.
            x = self.dropout(x.masked_fill(padding_mask.unsqueeze(-1), 0))
            width = convolution.kernel_size[0]
            # By hand, because an even width needs one more zero on the right than on the left.
            x = F.pad(x, (0, 0, (width - 1) // 2, width // 2)).transpose(1, 2)
            # Gehring et al. 2017, section 3.4: a sum of two terms has about twice the variance of
            # one.
            x = (F.glu(convolution(x).transpose(1, 2), dim=2) + residual) * math.sqrt(0.5)
        keys = linear(x, self.output_proj.weight, self.output_proj.bias)
        # Masked again, because the bias of output_proj fills the padding.
        keys = keys.masked_fill(padding_mask.unsqueeze(-1), 0)
        # Before the embeddings are added: the gradient that reaches them directly is not scaled, as
        # in fairseq.
        keys = GradMultiply.apply(keys, self.gradient_scale)
        values = (keys + embedding) * math.sqrt(0.5)
        return {"keys": [keys], "values": [values], "padding_mask": [padding_mask]}

    def max_positions(self) -> int:
        return self.embedding.max_positions()


def convert_source(
    encoder_out: Optional[EncoderOut], *, masks_padding: bool, part: str = ""
) -> Any:
    """Convert an encoder's output to the :class:`Source` that a decoder attends to.

    ``part`` is the prefix of the keys of ``encoder_out`` that are read: ``frozen_`` for the frozen
    encoder of a fusion model.
    """
    if encoder_out is None:
        return None
    keys, values, padding_mask = (
        encoder_out[part + name][0] for name in ("keys", "values", "padding_mask")
    )
    # Padding that is attended to makes the probability of a story depend on the prompts that share
    # its batch.
    return Source(keys, values, padding_mask if masks_padding else None)


class StoryDecoder(IncrementalDecoder):
    """Decoder of stories and language models: the layers of ``trunk`` and an output layer.

    Without ``masks_padding``, padding of the prompt is attended to, as in fairseq's
    ``fconv_self_att``. If ``can_join`` is True, the search may add examples to a batch during
    decoding, by :meth:`join_incremental_state`; shorter texts in ``prev_output_tokens`` are then
    left-padded.
    """

    can_join = True

    def __init__(
        self, dictionary: Any, trunk: ConvTrunk, *, dropout: float, masks_padding: bool = True
    ) -> None:
        super().__init__(dictionary)
        self.trunk = trunk
        self.dropout = nn.Dropout(dropout)
        self.masks_padding = masks_padding
        std = math.sqrt((1 - dropout) / trunk.out_dim)
        self.output_proj = normal_linear(trunk.out_dim, len(dictionary), std)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[EncoderOut] = None,
        incremental_state: Optional[dict] = None,
        trace: Optional[Trace] = None,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        """Compute features [B, T, out_dim], or [B, 1, out_dim] when decoding incrementally, and
        None.

        Attention weights are appended to the lists of ``trace``, unless it is None or decoding is
        incremental.
        """
        if incremental_state is None:
            source = convert_source(encoder_out, masks_padding=self.masks_padding)
            return self.dropout(self.trunk(prev_output_tokens, source, trace)), None
        (state,) = self._states(incremental_state, encoder_out)
        number = prev_output_tokens.size(1)
        hidden = self.trunk.step(prev_output_tokens[:, -1], number, state)
        return self.dropout(hidden).unsqueeze(1), None

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[EncoderOut] = None,
        incremental_state: Optional[dict] = None,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        """Compute logits [B, T, V], or [B, 1, V] when decoding incrementally, and None."""
        hidden, _ = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        if incremental_state is None:
            return self.output_layer(hidden), None
        output = self.output_proj
        # not output_layer(): nn.Linear is slower for the few rows of a decoding step
        return linear(hidden[:, 0], output.weight, output.bias).unsqueeze(1), None

    def output_layer(self, features: Tensor) -> Tensor:
        return self.output_proj(features)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        # States reorder themselves, because only they know which part of their buffers is in use.
        for state in self.get_incremental_state(incremental_state, STATE) or ():
            state.reorder(new_order)

    def join_incremental_state(self, incremental_state: dict, joining: dict) -> None:
        """Append the examples of the state ``joining``, whose texts may have other lengths."""
        states = self.get_incremental_state(incremental_state, STATE) or ()
        others = self.get_incremental_state(joining, STATE) or ()
        for state, other in zip(states, others):
            state.join(other)

    def make_generation_fast_(self, retain_dropout: bool = False, **unused: Any) -> None:
        self.trunk.fold()

    def max_positions(self) -> int:
        return self.trunk.max_positions()

    def _states(
        self, incremental_state: dict, encoder_out: Optional[EncoderOut]
    ) -> list[TrunkState]:
        states: Any = self.get_incremental_state(incremental_state, STATE)
        if states is None:
            states = self._begin(encoder_out)
            self.set_incremental_state(incremental_state, STATE, states)
        return states

    def _begin(self, encoder_out: Optional[EncoderOut]) -> list[TrunkState]:
        return [self.trunk.begin(convert_source(encoder_out, masks_padding=self.masks_padding))]
