"""The frame of the models that read a transcript and a video beside each other."""

from typing import Any, Optional

import torch
from fairseq.models import (
    FairseqEncoderDecoderModel,
)
from torch import Tensor

from fairseq_mm.errors import UserError
from fairseq_mm.models._bases import (
    BatchFirstEncoder,
    EncoderOut,
    FeatureDecoder,
    LoadStateDictMixin,
)
from fairseq_mm.models._provenance import MODULE_NAME, Provenance

STATE = "video_summary"


class TwoSourceEncoder(BatchFirstEncoder):
    """Subclasses define ``encode``: both sources, of a batch, to what the decoder attends to."""

    def __init__(self, dictionary: Any) -> None:
        super().__init__(dictionary)
        self.padding_idx = dictionary.pad()
        # generation casts the model, not the batch: this buffer is cast along and shows to what
        self.register_buffer("precision", torch.zeros(()), persistent=False)

    def encode(
        self, tokens: Tensor, features: Tensor, text_padding: Tensor, video_padding: Tensor
    ) -> tuple[Tensor, Tensor]:
        """
        Args:
            tokens: ``[B, S]``.
            features: ``[B, M, D]``.
            text_padding: ``[B, S]`` bool, True at padding.
            video_padding: ``[B, M]`` bool, True at padding.

        Returns:
            text: ``[B, S, C]``, and video ``[B, M, C']``.
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
        """
        Args:
            src_tokens: ``[B, S]`` transcripts, padded at either side.
            src_lengths: ``[B]``, not needed.
            features: ``[B, M, D]`` of frames.
            padding_mask: ``[B, M]`` bool, True at padding; a video has a frame at least.
            **unused: what fairseq gives other models.

        Returns:
            ``text`` ``[B, S, C]``, ``text_padding`` ``[B, S]``, ``video`` ``[B, M, C']``,
            ``video_padding`` ``[B, M]``, and ``item`` ``[B]``: the example that a row is of.
        """
        text_padding = src_tokens.eq(self.padding_idx)
        features = features.to(self.precision.dtype)
        text, video = self.encode(src_tokens, features, text_padding, padding_mask)
        return {
            "text": [text],
            "text_padding": [text_padding],
            "video": [video],
            "video_padding": [padding_mask],
            "item": [torch.arange(len(text), device=text.device)],
        }

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Rows in a new order. A beam search asks for it at every step; as long as all rows stay
        with their examples, whose beams are alike, nothing is copied."""
        if _keeps_items(encoder_out["item"][0], new_order):
            return encoder_out
        return super().reorder_encoder_out(encoder_out, new_order)


def _keeps_items(items: Tensor, new_order: Tensor) -> bool:
    return len(items) == len(new_order) and torch.equal(items[new_order], items)


def sources_of(encoder_out: EncoderOut) -> tuple[list[Tensor], list[Tensor]]:
    """Text and video of an encoder's output, and their padding masks."""
    names = ("text", "video")
    return (
        [encoder_out[name][0] for name in names],
        [encoder_out[f"{name}_padding"][0] for name in names],
    )


class TwoSourceDecoder(FeatureDecoder):
    """Base of decoders of transcript and video.

    Subclasses define ``extract_features``, ``project`` and the layer ``output_proj``. The
    incremental state is a dict: ``item``, as in the encoder's output; ``projected``, nested lists
    and tuples of tensors that depend only on the example; and ``past``, nested tensors that depend
    on the words.
    """

    def project(self, sources: list[Tensor]) -> Any:
        """Project encoded text and video [B, N, C] for attention: returns nested lists and tuples
        of tensors whose first dimension is B.
        """
        raise NotImplementedError

    def project_source(self, encoder_out: EncoderOut, *, has_beams: bool) -> Any:
        """Project the encoder's output.

        Args:
            encoder_out: Output of the encoder.
            has_beams: True if several rows may belong to one example, which is then projected once.

        Returns:
            Result of :meth:`project`.
        """
        sources, _ = sources_of(encoder_out)
        if not has_beams:  # in training, where asking would keep a GPU waiting
            return self.project(sources)
        items, rows = encoder_out["item"][0].unique(return_inverse=True)
        numbers = torch.arange(len(rows), device=rows.device)
        chosen = torch.zeros_like(items).scatter_(0, rows, numbers)  # one row of each example
        return _select(self.project([x.index_select(0, chosen) for x in sources]), rows)

    def kept(self, incremental_state: Optional[dict]) -> Optional[dict[str, Any]]:
        """Return the state that :meth:`keep` stored at the last step; None at the first."""
        if incremental_state is None:
            return None
        saved: Any = self.get_incremental_state(incremental_state, STATE)
        return saved

    def keep(
        self, incremental_state: dict, encoder_out: EncoderOut, projected: Any, past: Any
    ) -> None:
        saved = self.kept(incremental_state)
        items = encoder_out["item"][0] if saved is None else saved["item"]
        kept: Any = {"item": items, "projected": projected, "past": past}
        self.set_incremental_state(incremental_state, STATE, kept)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        saved = self.kept(incremental_state)
        if saved is None:
            return
        keeps_items = _keeps_items(saved["item"], new_order)
        kept: Any = {
            key: x if keeps_items and key != "past" else _select(x, new_order)
            for key, x in saved.items()
        }
        self.set_incremental_state(incremental_state, STATE, kept)


def _select(x: Any, order: Tensor) -> Any:
    """Rows of every tensor of nested lists and tuples."""
    if isinstance(x, Tensor):
        return x.index_select(0, order)
    return type(x)(_select(part, order) for part in x)


def attention_extra(
    word_weights: Optional[Tensor], frame_weights: Optional[Tensor], modalities: Optional[Tensor]
) -> dict[str, Any]:
    """
    Args:
        word_weights: ``[B, T, S]``.
        frame_weights: ``[B, T, M]``.
        modalities: ``[B, T, 2]`` weights of the text and of the video.

    Returns:
        what decoders give beside their features; ``attn`` as fairseq's search wants it.
    """
    return {
        "attn": None if word_weights is None else [word_weights],
        "frame_attention": frame_weights,
        "modality_attention": modalities,
    }


class VideoSummaryModel(LoadStateDictMixin, FairseqEncoderDecoderModel):
    """Model that summarises transcripts and videos; carries the provenance of its training data."""

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
        """
        Args:
            src_tokens: ``[B, S]`` transcripts.
            src_lengths: ``[B]``, not needed.
            prev_output_tokens: ``[B, T]`` summaries, the start token first.
            features: ``[B, M, D]`` of frames.
            padding_mask: ``[B, M]`` bool, True at padding.
            **unused: what fairseq gives other models.

        Returns:
            logits: ``[B, T, V]``, and a dict: see :func:`attention_extra`.

        Raises:
            UserError: if there is no video.
        """
        if features is None or padding_mask is None:
            raise UserError(
                f"{type(self).__name__} reads videos, but the batch has none: take --task "
                "video_summarization."
            )
        encoder_out = self.encoder(src_tokens, src_lengths, features, padding_mask)
        return self.decoder(prev_output_tokens, encoder_out)
