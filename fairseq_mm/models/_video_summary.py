"""Base classes of the models that read a transcript and a video."""

from typing import Any, Optional

import torch
from torch import Tensor

from fairseq_mm.models._bases import BatchFirstEncoder, EncoderOut, FeatureDecoder, TextModel
from fairseq_mm.models._provenance import Provenance
from fairseq_mm.modules.decoding_caches import (
    keeps_items,
    project_items,
    reorder_state,
)


class TwoSourceEncoder(BatchFirstEncoder):
    """Base of encoders of a transcript and a video. Subclasses define ``encode``."""

    def __init__(self, dictionary: Any) -> None:
        super().__init__(dictionary)
        self.padding_idx = dictionary.pad()
        # generation casts the model but not the batch: this buffer has the dtype of the model
        self.register_buffer("precision", torch.zeros(()), persistent=False)

    def encode(
        self, tokens: Tensor, features: Tensor, text_padding: Tensor, video_padding: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Encode tokens [B, S] and frames [B, M, D] to [B, S, C] and [B, M, C'].

        The masks [B, S] and [B, M] are bool, True at padding.
        """
        raise NotImplementedError

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor],
        features: Tensor,
        padding_mask: Tensor,
        **unused: Any,
    ) -> EncoderOut:
        """Encode transcripts [B, S], padded on either side, and frames [B, M, D].

        ``padding_mask`` [B, M] is True at padded frames. Returns a dict of lists of one tensor:
        ``text`` [B, S, C] and ``video`` [B, M, C'], their padding masks ``text_padding`` and
        ``video_padding``, and ``item`` [B], the index of each row's example.
        """
        text_padding = src_tokens.eq(self.padding_idx)
        features = features.to(self.precision.dtype)
        text, video = self.encode(src_tokens, features, text_padding, padding_mask)
        return {
            "text": [text],
            "text_padding": [text_padding],
            "video": [video],
            "video_padding": [padding_mask],
            # Identifies the example of a row after fairseq has repeated rows for beams and removed
            # finished examples.
            "item": [torch.arange(len(text), device=text.device)],
        }

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        # Beams of an example read equal rows. As long as each row stays with its example, which is
        # so at nearly every step of a beam search, nothing is copied.
        if keeps_items(encoder_out["item"][0], new_order):
            return encoder_out
        return super().reorder_encoder_out(encoder_out, new_order)


def get_sources(encoder_out: EncoderOut) -> tuple[list[Tensor], list[Tensor]]:
    """Return the list [text, video] of an encoder's output, and the list of their padding masks."""
    names = ("text", "video")
    return (
        [encoder_out[name][0] for name in names],
        [encoder_out[f"{name}_padding"][0] for name in names],
    )


class TwoSourceDecoder(FeatureDecoder):
    """Base of decoders that attend to an encoded transcript and an encoded video.

    Subclasses define ``extract_features``, ``project`` and the layer ``output_proj``. The state of
    incremental decoding is a dict. ``item`` has the index of each row's example. ``projected`` is
    the result of ``project``, equal for all beams of an example. ``past`` has nested lists of
    tensors that depend on the words of each beam.
    """

    state_key = "video_summary"

    def project(self, sources: list[Tensor]) -> Any:
        """Compute the attention's inputs, such as keys and values, from encoded text and video.

        Returns nested lists and tuples of tensors whose first dimension is B.
        """
        raise NotImplementedError

    def project_source(self, encoder_out: EncoderOut, *, has_beams: bool) -> Any:
        """Project the encoder's output for attention; with ``has_beams``, only once per example."""
        sources, _ = get_sources(encoder_out)
        # in training, unique() would make a GPU wait
        items = encoder_out["item"][0] if has_beams else None
        return project_items(self.project, sources, items)

    def saved_state(self, incremental_state: Optional[dict]) -> Optional[dict[str, Any]]:
        """Return the state of the last decoding step; None at the first step and in training."""
        if incremental_state is None:
            return None
        saved: Any = self.get_incremental_state(incremental_state, self.state_key)
        return saved

    def save_state(
        self, incremental_state: dict, encoder_out: EncoderOut, projected: Any, past: Any
    ) -> None:
        saved = self.saved_state(incremental_state)
        items = encoder_out["item"][0] if saved is None else saved["item"]
        state: Any = {"item": items, "projected": projected, "past": past}
        self.set_incremental_state(incremental_state, self.state_key, state)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        saved = self.saved_state(incremental_state)
        if saved is None:
            return
        state: Any = reorder_state(saved, new_order)
        self.set_incremental_state(incremental_state, self.state_key, state)


def attention_extra(
    word_weights: Optional[Tensor], frame_weights: Optional[Tensor], modalities: Optional[Tensor]
) -> dict[str, Any]:
    """Build the dict of attention weights that decoders return for T decoding steps.

    Args:
        word_weights: [B, T, S] weights of S words of the transcript, or None.
        frame_weights: [B, T, M] weights of M frames, or None.
        modalities: [B, T, 2] weights of text and video, or None.
    """
    return {
        # fairseq takes attn for attention to source tokens and aligns words by it.
        "attn": None if word_weights is None else [word_weights],
        "frame_attention": frame_weights,
        "modality_attention": modalities,
    }


class VideoSummaryModel(TextModel):
    """Base of the models that summarise transcripts and videos."""

    reads_video = True

    def __init__(self, encoder: TwoSourceEncoder, decoder: TwoSourceDecoder, task: Any) -> None:
        super().__init__(encoder, decoder, Provenance.of_task(task, has_source=True))
