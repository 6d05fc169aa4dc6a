"""Defines the decoder of stories and language models: convolutional layers and an output layer."""

import math
from typing import Any, Optional

from torch import Tensor, nn

from fairseq_mm.models._bases import IncrementalDecoder
from fairseq_mm.models._conv_encoder import EncoderOut
from fairseq_mm.models._conv_trunk import ConvTrunk, Source, Trace, TrunkState
from fairseq_mm.modules.linear import linear, normal_linear

STATE = "trunks"


def convert_source(
    encoder_out: Optional[EncoderOut], *, masks_padding: bool, part: str = ""
) -> Any:
    """Convert an encoder's output to the :class:`Source` that a decoder attends to.

    Args:
        encoder_out: Output of the encoder; None for a language model, which has no encoder.
        masks_padding: True if padding of the prompt gets no attention.
        part: Prefix of the keys of ``encoder_out`` that are read: ``frozen_`` for the frozen
            encoder of a fusion model, otherwise empty.

    Returns:
        The :class:`Source`; None for a language model.
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
    """Decoder of stories and language models.

    Args:
        trunk: Layers of the decoder before the output layer, from tokens to hidden states.
        masks_padding: True if padding of the prompt gets no attention; False to attend to it, as
            in fairseq's ``fconv_self_att``, the code of Fan et al. 2018.

    Attributes:
        can_join: Always True: the search may add further examples to a batch during
            decoding, by :meth:`join_incremental_state`. Shorter texts in ``prev_output_tokens`` are
            then left-padded.
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
        """Compute features [B, T, out_dim], or [B, 1, out_dim] when decoding incrementally.

        ``out_dim`` is the input dimension of the output layer. The second result is None. Attention
        weights are appended to the lists of ``trace``, a :class:`Trace`, unless it is None or
        decoding is incremental.
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
        """Compute logits [B, T, V], or [B, 1, V] when decoding incrementally.

        V is the size of the vocabulary. The second result is None.
        """
        hidden, _ = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        if incremental_state is None:
            return self.output_layer(hidden), None
        output = self.output_proj
        # Not output_layer(): nn.Linear is slower for the few rows of a decoding step, see
        # :mod:`fairseq_mm.modules.linear`.
        return linear(hidden[:, 0], output.weight, output.bias).unsqueeze(1), None

    def output_layer(self, features: Tensor) -> Tensor:
        """Compute logits [..., V] over the vocabulary from features [..., out_dim]."""
        return self.output_proj(features)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        # States reorder themselves, because only they know which part of their buffers is in use.
        for state in self.get_incremental_state(incremental_state, STATE) or ():
            state.reorder(new_order)

    def join_incremental_state(self, incremental_state: dict, joining: dict) -> None:
        """Append the examples of the state ``joining``; their texts may be longer or shorter."""
        states = self.get_incremental_state(incremental_state, STATE) or ()
        others = self.get_incremental_state(joining, STATE) or ()
        for state, other in zip(states, others):
            state.join(other)

    def make_generation_fast_(self, retain_dropout: bool = False, **unused: Any) -> None:
        """Precompute, for generation, the matrices that depend only on the weights.

        fairseq calls this before generation and allows no training afterwards.
        """
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
