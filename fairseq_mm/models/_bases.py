"""Base classes of encoders and decoders, with the methods that fairseq requires."""

from typing import Any, Optional

from fairseq.models import FairseqEncoder, FairseqIncrementalDecoder
from torch import Tensor, nn

EncoderOut = dict[str, list[Tensor]]


class BatchFirstEncoder(FairseqEncoder):
    """An encoder whose output is lists of tensors ``[B, ...]``."""

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        return {key: [x.index_select(0, new_order) for x in xs] for key, xs in encoder_out.items()}


class FeatureDecoder(FairseqIncrementalDecoder):
    """Base of decoders. Subclasses define ``extract_features`` and the layer ``output_proj``.

    Attributes:
        state_key: Key of the incremental state, a dict of tensors [B, ...].
    """

    output_proj: nn.Linear
    state_key: str

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any = None,
        incremental_state: Optional[dict] = None,
        features_only: bool = False,
        **unused: Any,
    ) -> tuple[Tensor, Any]:
        """As ``extract_features``; returns logits ``[B, T, V]``."""
        features, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        return features if features_only else self.output_layer(features), extra

    def output_layer(self, features: Tensor) -> Tensor:
        """Logits ``[..., V]`` of ``[..., H]``."""
        return self.output_proj(features)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        saved = self.get_incremental_state(incremental_state, self.state_key)
        if saved is not None:
            kept = {key: x.index_select(0, new_order) for key, x in saved.items()}
            self.set_incremental_state(incremental_state, self.state_key, kept)

    def max_positions(self) -> int:
        """Unlimited: the decoder state does not grow with the text."""
        return 1_000_000
