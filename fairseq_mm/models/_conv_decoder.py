"""The trunk with its output layer, as fairseq's decoder: of stories and of language models."""

import math
from typing import Any, Optional

from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor, nn

from fairseq_mm.models._conv_encoder import EncoderOut
from fairseq_mm.models._conv_trunk import ConvTrunk, Source, Trace, TrunkState
from fairseq_mm.modules.linear import linear

STATE = "trunks"


def source_of(encoder_out: Optional[EncoderOut], *, masks_padding: bool, part: str = "") -> Any:
    """Convert an encoder's output to the source of the trunk; None for a language model."""
    if encoder_out is None:
        return None
    keys, values, padding_mask = (
        encoder_out[part + name][0] for name in ("keys", "values", "padding_mask")
    )
    return Source(keys, values, padding_mask if masks_padding else None)


class StoryDecoder(FairseqIncrementalDecoder):
    """
    Args:
        masks_padding: padding of the prompt gets no attention. The released code attends to it,
            so that a story's probability depends on the batch that it is in.
    """

    def __init__(
        self, dictionary: Any, trunk: ConvTrunk, *, dropout: float, masks_padding: bool = True
    ) -> None:
        super().__init__(dictionary)
        self.trunk = trunk
        self.dropout = nn.Dropout(dropout)
        self.masks_padding = masks_padding
        self.output_proj = output_projection(trunk.out_dim, len(dictionary), dropout)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[EncoderOut] = None,
        incremental_state: Optional[dict] = None,
        trace: Optional[Trace] = None,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        """
        Args:
            prev_output_tokens: ``[B, T]`` words so far, the start token first.
            encoder_out: the encoder's, or None.
            incremental_state: with it, only the last word is new.
            trace: gets the attention weights; not while decoding incrementally.
            **unused: what fairseq gives other models.

        Returns:
            hidden: ``[B, T, out_dim]``, or ``[B, 1, out_dim]`` when decoding incrementally.
        """
        if incremental_state is None:
            source = source_of(encoder_out, masks_padding=self.masks_padding)
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
        """As :meth:`extract_features`; returns logits ``[B, T, V]`` and None."""
        hidden, _ = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        if incremental_state is None:
            return self.output_layer(hidden), None
        output = self.output_proj
        return linear(hidden[:, 0], output.weight, output.bias).unsqueeze(1), None

    def output_layer(self, features: Tensor) -> Tensor:
        """Logits ``[..., V]`` of hidden states ``[..., out_dim]``."""
        return self.output_proj(features)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        for state in self.get_incremental_state(incremental_state, STATE) or ():
            state.reorder(new_order)

    def make_generation_fast_(self, retain_dropout: bool = False, **unused: Any) -> None:
        """Called by fairseq before generating, after which it allows no more training."""
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
        return [self.trunk.begin(source_of(encoder_out, masks_padding=self.masks_padding))]


def output_projection(hidden_dim: int, num_types: int, dropout: float) -> nn.Linear:
    layer = nn.Linear(hidden_dim, num_types)
    nn.init.normal_(layer.weight, std=math.sqrt((1 - dropout) / hidden_dim))
    nn.init.zeros_(layer.bias)
    return layer
