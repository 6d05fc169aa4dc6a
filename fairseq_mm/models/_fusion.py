"""Fusion of a story model in training with one that is trained and fixed.

Fan et al. 2018, section 3.4: the second model learns what the first has not. Their hidden states
are joined, the first model's output layer is not computed.
"""

import math
from typing import Any, Optional

import torch
from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from fairseq_mm.models._conv_decoder import StoryDecoder, source_of
from fairseq_mm.models._conv_encoder import ConvEncoder, EncoderOut, reorder_encoder_out
from fairseq_mm.models._conv_trunk import ConvTrunk, Trace, TrunkState

FROZEN = "frozen_"


class FusionEncoder(FairseqEncoder):
    """Both models' encoders: the frozen one's outputs have ``frozen_`` before their names."""

    def __init__(self, trained: ConvEncoder, frozen: ConvEncoder) -> None:
        super().__init__(trained.dictionary)
        self.trained = trained
        self.frozen = frozen

    def forward(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None) -> EncoderOut:
        """As :meth:`ConvEncoder.forward`, twice."""
        out = self.trained(src_tokens, src_lengths)
        with torch.no_grad():
            frozen = self.frozen(src_tokens, src_lengths)
        return {**out, **{FROZEN + key: xs for key, xs in frozen.items()}}

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        return reorder_encoder_out(encoder_out, new_order)

    def max_positions(self) -> int:
        return min(self.trained.max_positions(), self.frozen.max_positions())


class Fusion(nn.Module):
    """Fusion of two hidden states: ``joining([g1 * h1; g2 * h2])`` with ``g_i = sigmoid(W_i [h1;
    h2] + b_i)``.

    ``joining`` has three linear layers, each followed by layer normalisation, with gated linear
    units between them.

    Args:
        trained_dim: Dimension of h1, the hidden states of the model in training.
        frozen_dim: Dimension of h2, the hidden states of the frozen model.
    """

    def __init__(self, trained_dim: int, frozen_dim: int) -> None:
        super().__init__()
        both = trained_dim + frozen_dim
        self.trained_gate = _linear(both, trained_dim)
        self.frozen_gate = _linear(both, frozen_dim)
        self.joining = nn.Sequential(
            _linear(both, 2 * trained_dim),
            nn.LayerNorm(2 * trained_dim),
            nn.GLU(),
            _linear(trained_dim, 2 * trained_dim),
            nn.LayerNorm(2 * trained_dim),
            nn.GLU(),
            _linear(trained_dim, trained_dim),
            nn.LayerNorm(trained_dim),
        )

    def forward(self, trained: Tensor, frozen: Tensor) -> Tensor:
        """
        Args:
            trained: ``[..., trained_dim]``.
            frozen: ``[..., frozen_dim]``.

        Returns:
            ``[..., trained_dim]``.
        """
        trained_gate, frozen_gate = self.gates(trained, frozen)
        return self.joining(torch.cat([trained_gate * trained, frozen_gate * frozen], dim=-1))

    def gates(self, trained: Tensor, frozen: Tensor) -> tuple[Tensor, Tensor]:
        """g1 and g2, of the shapes of ``trained`` and ``frozen``."""
        both = torch.cat([trained, frozen], dim=-1)
        return self.trained_gate(both).sigmoid(), self.frozen_gate(both).sigmoid()


class FusionDecoder(StoryDecoder):
    """Decoder that fuses the model in training with a frozen model.

    Args:
        frozen: Trunk of the frozen model.
        dropout: Dropout of the trained model's hidden states.
        masks_padding: See :class:`StoryDecoder`; for the model in training.
        frozen_masks_padding: The same for the frozen model, as it was trained.
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

    def replace_frozen(self, frozen: ConvTrunk, masks_padding: bool) -> None:
        """Another fixed model; where its size differs, with new gates."""
        if frozen.out_dim != self.frozen.out_dim:
            fusion = Fusion(self.trunk.out_dim, frozen.out_dim)
            self.fusion = fusion.to(next(self.fusion.parameters()))
        self.frozen = frozen
        self.frozen_masks_padding = masks_padding

    def hidden_states(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: Optional[dict] = None,
        trace: Optional[Trace] = None,
    ) -> tuple[Tensor, Tensor]:
        """``[B, T, dim]`` of the trained and of the frozen model (T is 1 when incremental)."""
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
        return self.dropout(trained), frozen

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[EncoderOut] = None,
        incremental_state: Optional[dict] = None,
        trace: Optional[Trace] = None,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        """As :meth:`StoryDecoder.extract_features`, after fusion."""
        assert encoder_out is not None
        states = self.hidden_states(prev_output_tokens, encoder_out, incremental_state, trace)
        return self.fusion(*states), None

    def make_generation_fast_(self, retain_dropout: bool = False, **unused: Any) -> None:
        self.trunk.fold()
        self.frozen.fold()

    def max_positions(self) -> int:
        return min(self.trunk.max_positions(), self.frozen.max_positions())

    def _begin(self, encoder_out: Optional[EncoderOut]) -> list[TrunkState]:
        source, frozen_source = self._sources(encoder_out)
        return [self.trunk.begin(source), self.frozen.begin(frozen_source)]

    def _sources(self, encoder_out: Optional[EncoderOut]) -> tuple[Any, Any]:
        return (
            source_of(encoder_out, masks_padding=self.masks_padding),
            source_of(encoder_out, masks_padding=self.frozen_masks_padding, part=FROZEN),
        )


def _linear(input_dim: int, output_dim: int) -> nn.Linear:
    layer = nn.Linear(input_dim, output_dim)
    nn.init.normal_(layer.weight, std=math.sqrt(1 / input_dim))
    nn.init.zeros_(layer.bias)
    return layer
