"""Fusion of a story model in training with a trained, frozen story model.

Fan et al. 2018, section 3.4. The hidden states of both models are joined before a common output
layer, so that the model in training learns what the frozen model has not learnt.
"""

import math
from typing import Any, Optional

import torch
from torch import Tensor, nn

from fairseq_mm.models._bases import BatchFirstEncoder, EncoderOut
from fairseq_mm.models._conv_decoder import ConvEncoder, StoryDecoder, convert_source
from fairseq_mm.models._conv_trunk import ConvTrunk, Trace, TrunkState
from fairseq_mm.modules.linear import normal_linear

FROZEN = "frozen_"


class FusionEncoder(BatchFirstEncoder):
    """Pair of encoders: of the model in training (``trained``), and of the ``frozen`` model."""

    def __init__(self, trained: ConvEncoder, frozen: ConvEncoder) -> None:
        super().__init__(trained.dictionary)
        self.trained = trained
        self.frozen = frozen

    def forward(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None) -> EncoderOut:
        """Run both encoders on prompts [B, S]; the frozen encoder's keys begin with ``frozen_``."""
        out = self.trained(src_tokens, src_lengths)
        with torch.no_grad():
            frozen = self.frozen(src_tokens, src_lengths)
        return {**out, **{FROZEN + key: xs for key, xs in frozen.items()}}

    def max_positions(self) -> int:
        return min(self.trained.max_positions(), self.frozen.max_positions())


class Fusion(nn.Module):
    """Fusion of the hidden states h1 of the model in training and h2 of the frozen model.

        g_i = sigmoid(W_i [h1; h2] + b_i)          i = 1, 2
        output = joining([g_1 * h1; g_2 * h2])

    ``joining`` has three linear layers, each followed by layer normalisation, with gated linear
    units between them. h1 and the output have ``trained_dim`` channels, h2 has ``frozen_dim``.
    """

    def __init__(self, trained_dim: int, frozen_dim: int) -> None:
        super().__init__()
        both = trained_dim + frozen_dim
        # As in the released code, each model has gates of its own for every channel, from both
        # hidden states.
        self.trained_gate = normal_linear(both, trained_dim, math.sqrt(1 / both))
        self.frozen_gate = normal_linear(both, frozen_dim, math.sqrt(1 / both))
        self.joining = nn.Sequential(
            normal_linear(both, 2 * trained_dim, math.sqrt(1 / both)),
            nn.LayerNorm(2 * trained_dim),
            nn.GLU(),
            normal_linear(trained_dim, 2 * trained_dim, math.sqrt(1 / trained_dim)),
            nn.LayerNorm(2 * trained_dim),
            nn.GLU(),
            normal_linear(trained_dim, trained_dim, math.sqrt(1 / trained_dim)),
            nn.LayerNorm(trained_dim),
        )

    def forward(self, trained: Tensor, frozen: Tensor) -> Tensor:
        trained_gate, frozen_gate = self.gates(trained, frozen)
        return self.joining(torch.cat([trained_gate * trained, frozen_gate * frozen], dim=-1))

    def gates(self, trained: Tensor, frozen: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the gates g_1 and g_2, with the shapes of ``trained`` and ``frozen``."""
        both = torch.cat([trained, frozen], dim=-1)
        return self.trained_gate(both).sigmoid(), self.frozen_gate(both).sigmoid()


class FusionDecoder(StoryDecoder):
    """Decoder that fuses the model in training with a frozen model.

    ``frozen_masks_padding`` is ``masks_padding`` of the frozen model, as in its own training.
    """

    def __init__(
        self,
        dictionary: Any,
        trunk: ConvTrunk,
        frozen: ConvTrunk,
        *,
        dropout: float,
        masks_padding: bool = True,
        frozen_masks_padding: bool = True,
    ) -> None:
        super().__init__(dictionary, trunk, dropout=dropout, masks_padding=masks_padding)
        self.frozen = frozen
        self.fusion = Fusion(trunk.out_dim, frozen.out_dim)
        self.frozen_masks_padding = frozen_masks_padding

    def hidden_states(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: Optional[dict] = None,
        trace: Optional[Trace] = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute hidden states [B, T, dim] of the model in training and of the frozen model.

        When decoding incrementally, T is 1. Otherwise the attention weights of the model in
        training are appended to the lists of ``trace``, a :class:`Trace`, unless it is None.
        """
        if incremental_state is None:
            source, frozen_source = self._sources(encoder_out)
            trained = self.trunk(prev_output_tokens, source, trace)
            with torch.no_grad():
                frozen = self.frozen(prev_output_tokens, frozen_source)
        else:
            state, frozen_state = self._states(incremental_state, encoder_out)
            number = prev_output_tokens.size(1)
            newest = prev_output_tokens[:, -1]
            trained = self.trunk.step(newest, number, state).unsqueeze(1)
            frozen = self.frozen.step(newest, number, frozen_state).unsqueeze(1)
        # No dropout of the frozen states: the released code takes them before the frozen model's
        # dropout.
        return self.dropout(trained), frozen

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[EncoderOut] = None,
        incremental_state: Optional[dict] = None,
        trace: Optional[Trace] = None,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        assert encoder_out is not None
        states = self.hidden_states(prev_output_tokens, encoder_out, incremental_state, trace)
        return self.fusion(*states), None

    def make_generation_fast_(self, retain_dropout: bool = False, **unused: Any) -> None:
        self.trunk.fold()
        # The frozen model is no part of self.trunk, so fairseq would leave its weights unfolded.
        self.frozen.fold()

    def max_positions(self) -> int:
        return min(self.trunk.max_positions(), self.frozen.max_positions())

    def _begin(self, encoder_out: Optional[EncoderOut]) -> list[TrunkState]:
        source, frozen_source = self._sources(encoder_out)
        return [self.trunk.begin(source), self.frozen.begin(frozen_source)]

    def _sources(self, encoder_out: Optional[EncoderOut]) -> tuple[Any, Any]:
        return (
            convert_source(encoder_out, masks_padding=self.masks_padding),
            convert_source(encoder_out, masks_padding=self.frozen_masks_padding, part=FROZEN),
        )
