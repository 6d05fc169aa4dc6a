"""Defines base classes of the models that read a transcript and a video."""

from typing import Any, Optional

import torch
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor

from fairseq_mm.models._bases import (
    BatchFirstEncoder,
    EncoderOut,
    FeatureDecoder,
    LoadStateDictMixin,
)
from fairseq_mm.models._provenance import MODULE_NAME, Provenance
from fairseq_mm.modules.decoding_caches import keeps_items, reorder_state, select_rows

STATE = "video_summary"


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
        """Encode S tokens and M frames of each example.

        Args:
            tokens: [B, S] tokens of the transcripts.
            features: [B, M, D] frames.
            text_padding: [B, S] bool, True at padding.
            video_padding: [B, M] bool, True at padding.

        Returns:
            Encoded text [B, S, C] and encoded video [B, M, C']; the dimensions C and C' depend on
            the subclass.
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
        """Encode a batch.

        Args:
            src_tokens: [B, S] transcripts, padded on either side.
            src_lengths: Not used.
            features: [B, M, D] frames.
            padding_mask: [B, M] bool, True at padding; at least one frame of each video is real.
            **unused: Arguments that fairseq passes to other models.

        Returns:
            A dict of lists of one tensor: the encoded transcript ``text`` [B, S, C] and the encoded
                frames ``video`` [B, M, C'] of C and C' channels, their padding masks
                ``text_padding`` [B, S] and ``video_padding`` [B, M], and ``item`` [B], the index of
                each row's example.
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

    def project(self, sources: list[Tensor]) -> Any:
        """Compute the attention's inputs, such as keys and values, from encoded text and video.

        ``sources`` is the list of encoded text [B, S, C], S tokens of C channels, and encoded video
        [B, M, C'], M frames of C' channels. Returns nested lists and tuples of tensors whose first
        dimension is B.
        """
        raise NotImplementedError

    def project_source(self, encoder_out: EncoderOut, *, has_beams: bool) -> Any:
        """Project the encoder's output for attention, see :meth:`project`.

        ``has_beams`` is True if several rows may be beams of one example. The example is then
        projected once, and the result is copied to its rows.
        """
        sources, _ = get_sources(encoder_out)
        if not has_beams:
            # in training, where unique() would make a GPU wait
            return self.project(sources)
        items, rows = encoder_out["item"][0].unique(return_inverse=True)
        # One row per example; any will do, because the beams of an example have equal outputs of
        # the encoder.
        numbers = torch.arange(len(rows), device=rows.device)
        chosen = torch.zeros_like(items).scatter_(0, rows, numbers)
        # Projecting is the expensive part: once for each example, then copied to its beams.
        return select_rows(self.project(select_rows(sources, chosen)), rows)

    def saved_state(self, incremental_state: Optional[dict]) -> Optional[dict[str, Any]]:
        """Return the state of the last decoding step; None at the first step and in training."""
        if incremental_state is None:
            return None
        saved: Any = self.get_incremental_state(incremental_state, STATE)
        return saved

    def save_state(
        self, incremental_state: dict, encoder_out: EncoderOut, projected: Any, past: Any
    ) -> None:
        saved = self.saved_state(incremental_state)
        items = encoder_out["item"][0] if saved is None else saved["item"]
        state: Any = {"item": items, "projected": projected, "past": past}
        self.set_incremental_state(incremental_state, STATE, state)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        saved = self.saved_state(incremental_state)
        if saved is None:
            return
        state: Any = reorder_state(saved, new_order)
        self.set_incremental_state(incremental_state, STATE, state)


def attention_extra(
    word_weights: Optional[Tensor], frame_weights: Optional[Tensor], modalities: Optional[Tensor]
) -> dict[str, Any]:
    """Build the dict of attention weights that decoders return for T decoding steps.

    Its entries are ``attn``, a list with ``word_weights``; ``frame_attention``; and
    ``modality_attention``. An entry is None if its weights were not computed.

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


class VideoSummaryModel(LoadStateDictMixin, FairseqEncoderDecoderModel):
    """Base of the models that summarise transcripts and videos.

    The state dict contains the provenance (record of dictionaries and features).
    """

    reads_video = True

    def __init__(self, encoder: TwoSourceEncoder, decoder: TwoSourceDecoder, task: Any) -> None:
        super().__init__(encoder, decoder)
        self.add_module(MODULE_NAME, Provenance.of_task(task, has_source=True))

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor],
        prev_output_tokens: Tensor,
        features: Optional[Tensor] = None,
        padding_mask: Optional[Tensor] = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute logits [B, T, V] of summaries [B, T], and a dict of attention weights.

        See :meth:`TwoSourceEncoder.forward` for the transcript and the video, and
        :func:`attention_extra` for the dict.
        """
        encoder_out = self.encoder(src_tokens, src_lengths, features, padding_mask)
        return self.decoder(prev_output_tokens, encoder_out)
