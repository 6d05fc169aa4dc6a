"""Defines encoder and decoder of VG-T5: T5 with video fusions after some of its layers."""

from typing import Any, Optional

from torch import Tensor, nn

from fairseq_mm.models._t5_stack import EncoderOut, T5Decoder, T5Encoder
from fairseq_mm.models._video_guided import VideoReader
from fairseq_mm.modules.video_fusion import FusionTrace, VideoFusion

_EPSILON = 1e-6


def fuse_at_unit_scale(
    fusion: VideoFusion,
    text: Tensor,
    projected: Any,
    padding_mask: Optional[Tensor],
    trace: Optional[FusionTrace],
) -> Tensor:
    """Apply a video fusion to T5's residual stream, scaled to unit size: ``s fusion(text / s)``.

    The residual stream ``text`` is [B, N, D], and ``s`` is its root mean square at each of N
    positions. The result has the shape and dtype of ``text``. See :meth:`VideoFusion.forward` for
    the other arguments.
    """
    stream = text.float()
    # T5's residual stream is not normalised and has any scale. If the fusion's layer norm scaled it
    # to 1, earlier layers' outputs would be small compared with the outputs of later layers.
    scale = (stream.square().mean(dim=-1, keepdim=True) + _EPSILON).sqrt()
    unit = (stream / scale).to(fusion.norm.weight.dtype)
    change = fusion(unit, projected, padding_mask, trace) - unit
    # The change is added, because s (text / s) could differ from the text in the last digits even
    # if the fusion changes nothing.
    return text + (change.float() * scale).to(text.dtype)


class VgT5Encoder(T5Encoder):
    """T5 encoder with video fusions after some layers.

    Args:
        *args: Arguments of :class:`T5Encoder`.
        video: Module that encodes the features of frames for the fusions.
        fusions: Module dict from the number of a layer, counted from 1, to the
            :class:`VideoFusion` after this layer.
        fuses_output: True if the fusion of the last layer follows the encoder's final norm, as in
            the code of Yu et al. 2021; False if it precedes the norm.
        gives_video: True to return the encoded frames, which a decoder with fusions needs.
        **kwargs: Arguments of :class:`T5Encoder`.
    """

    def __init__(
        self,
        *args: Any,
        video: VideoReader,
        fusions: nn.ModuleDict,
        fuses_output: bool,
        gives_video: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.video = video
        self.fusions: Any = fusions
        self.fuses_output = fuses_output
        self.gives_video = gives_video

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        features: Optional[Tensor] = None,
        padding_mask: Optional[Tensor] = None,
        trace: Optional[FusionTrace] = None,
    ) -> EncoderOut:
        """Encode transcripts and frames.

        Args:
            src_tokens: [B, S] transcripts, padded on either side.
            src_lengths: Not used.
            features: [B, M, D] frames, padded at the end.
            padding_mask: [B, M] bool, True at padding; None for no padding.
            trace: Record to which the fusions append their attention weights and gates, in the
                order of the layers; None for no record.

        Returns:
            The dict of :meth:`T5Encoder.forward` with two more lists: ``video`` [B, M, D], empty if
                the decoder has no fusions, and ``video_padding_mask`` [B, M] bool, empty if all
                frames are attended to.
        """
        video, mask = self.video(features, padding_mask, self.embedding.weight.dtype)
        encoder_out = self._encode(src_tokens, (video, mask, trace))
        is_masked = self.gives_video and mask is not None
        encoder_out["video"] = [video] if self.gives_video else []
        encoder_out["video_padding_mask"] = [mask] if is_masked else []
        return encoder_out

    def fuse(self, x: Tensor, number: int, video: Any) -> Tensor:
        # As released, the fusion of the last layer comes after the final norm, see fuse_output().
        is_later = self.fuses_output and number == len(self.layers)
        if is_later or str(number) not in self.fusions:
            return x
        features, mask, trace = video
        fusion = self.fusions[str(number)]
        return fuse_at_unit_scale(fusion, x, fusion.project(features), mask, trace)

    def fuse_output(self, x: Tensor, video: Any) -> Tensor:
        number = str(len(self.layers))
        if not self.fuses_output or number not in self.fusions:
            return x
        features, mask, trace = video
        fusion = self.fusions[number]
        # After the norm the text has unit scale already.
        return fusion(x, fusion.project(features), mask, trace)


class VgT5Decoder(T5Decoder):
    """T5 decoder with video fusions after some layers.

    Args:
        *args: Arguments of :class:`T5Decoder`.
        fusions: Module dict from the number of a layer, counted from 1, to the
            :class:`VideoFusion` after this layer.
        **kwargs: Arguments of :class:`T5Decoder`.
    """

    def __init__(self, *args: Any, fusions: nn.ModuleDict, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fusions: Any = fusions

    def _source(self, encoder_out: EncoderOut) -> dict[str, Any]:
        source = super()._source(encoder_out)
        source["video"] = {
            number: fusion.project(encoder_out["video"][0])
            for number, fusion in self.fusions.items()
        }
        mask = encoder_out["video_padding_mask"]
        source["video_padding_mask"] = mask[0] if mask else None
        return source

    def fuse(
        self, x: Tensor, number: int, source: dict[str, Any], trace: Optional[FusionTrace] = None
    ) -> Tensor:
        if str(number) not in self.fusions:
            return x
        projected = source["video"][str(number)]
        mask = source["video_padding_mask"]
        text = x
        if len(projected[0]) != len(x):
            # the beams of an item are several queries to its frames
            text = x.view(len(projected[0]), -1, x.size(-1))
        fused = fuse_at_unit_scale(self.fusions[str(number)], text, projected, mask, trace)
        return fused.view_as(x)
