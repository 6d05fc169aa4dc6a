"""VG-T5: T5 whose layers attend to a video (``--arch vg_t5_base``).

Yu, Dai, Liu, Fung. Vision Guided Generative Pre-trained Language Models for Multimodal Abstractive
Summarization. EMNLP 2021, section 3. https://github.com/HLTCHKUST/VG-GPLMs

Some layers of T5 get a third sub-layer after the feed-forward layer: words attend to frames, and
the result is added, see ``modules/video_fusion.py``. The frames are first encoded by their own
transformer (VTF), see ``models/_video_guided.py``. Defaults are the best system of Tables 2 and 4:
multi-head attention, forget gate, VTF, fusion in the last two encoder layers. ``vg_bart.py`` lists
the options of the other systems of Tables 1 to 5, which are the same for VG-T5.

Checkpoints of ``--arch t5`` are loaded with ``--finetune-from-model``; the parameters of fusion and
VTF, which these checkpoints lack, keep their initial values. These parameters have the attribute
``param_group = "added"``, for a parameter group with its own learning rate.

Differs from the paper:
- The paper has the layer norm of equation 3 after each sub-layer. T5 has its norms before the
  sub-layers, and does not normalise the residual stream between them. Here the stream is divided by
  its root mean square at each position. The fusion's ``LayerNorm(T + out)``, with T the divided
  stream and out the term that fusion adds, is then multiplied by this root mean square.
- The paper writes of six layers. T5-base has twelve encoder layers, so the last two are 11 and 12.
- As in VG-BART, multi-head attention has four heads, and two projections in succession are one
  matrix.

Differs from the released code:
- In the released code, a single fusion follows the encoder's last norm, and the decoder reads the
  fusion's output; a VTF is built but never called. ``--compat released`` moves the fusion of the
  last encoder layer behind the last norm, and has no VTF, whatever ``--video-encoder-layers`` says.
  With this option, as in VG-BART, padded frames are attended to, the fusion has one head, the
  forget gate has dropout, and the softmax of dot products is over the text's positions instead
  of the frames.

As in the released code, transcripts have no prefix such as ``summarize:``.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

from fairseq.models import register_model
from torch import Tensor, nn

from fairseq_mm.compat.options import option
from fairseq_mm.models._bases import EncoderOut
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import (
    MODULE_NAME,
    STATE_KEY,
    Provenance,
    decode_provenance,
    encode_json,
)
from fairseq_mm.models._video_guided import (
    VideoGuidedConfig,
    VideoReader,
    add_missing_weights,
    build_fusions,
    check_video_guided,
    complete_video_guided,
    is_released,
)
from fairseq_mm.models.t5 import (
    BASE,
    LARGE,
    SMALL,
    TINY,
    T5Config,
    T5Decoder,
    T5Encoder,
    T5Model,
    build_t5_parts,
)
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

    ``s`` is the root mean square of ``text`` [B, N, D] at each position. See
    :meth:`VideoFusion.forward` for the other arguments.
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
        fusions: Module dict from the number of a layer, counted from 1, to the
            :class:`VideoFusion` after this layer.
        fuses_output: True if the fusion of the last layer follows the encoder's final norm, as in
            the code of Yu et al. 2021; False if it precedes the norm.
        gives_video: True to return the encoded frames, which a decoder with fusions needs.
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
        """Encode transcripts [B, S] and frames [B, M, D], as :meth:`VgBartEncoder.forward` does.

        The dict of :meth:`T5Encoder.forward` gets two more lists: ``video`` [B, M, D], empty if the
        decoder has no fusions, and ``video_padding_mask`` [B, M] bool, empty if all frames are
        attended to.
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
    """T5 decoder with video fusions after some layers, see :class:`VgT5Encoder`."""

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


@dataclass
class VgT5Config(VideoGuidedConfig, T5Config):
    """Options of VG-T5: T5-base, and the best video fusion of Yu et al. 2021, Table 2."""

    fusion_encoder_layers: Optional[str] = option(
        None,
        "Encoder layers with fusion, counted from 1, such as 11,12; '' or none for no layer "
        "(default: the last two layers).",
    )  # type: ignore[assignment]


@register_model("vg_t5", dataclass=VgT5Config)
class VgT5Model(T5Model):
    """Model that summarises transcripts and videos (VG-T5)."""

    reads_video = True

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "VgT5Model":
        video_dim = getattr(task, "feature_dim", 0)
        cfg = _completed(cfg)
        check_video_guided(cfg, video_dim=video_dim)
        fusions = build_fusions(cfg, text_dim=cfg.model_dim, video_dim=video_dim)
        encoder, decoder = build_t5_parts(
            cfg,
            task,
            partial(
                VgT5Encoder,
                video=VideoReader.of_config(cfg, video_dim=video_dim),
                fusions=fusions["encoder"],
                fuses_output=is_released(cfg),
                gives_video=len(fusions["decoder"]) > 0,
            ),
            partial(VgT5Decoder, fusions=fusions["decoder"]),
        )
        return cls(encoder, decoder, Provenance.of_task(task, has_source=True))

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Add the parameters of the video fusion to the weights of a text-only T5."""
        if add_missing_weights(self, state_dict) and STATE_KEY in state_dict:
            provenance = decode_provenance(state_dict[STATE_KEY])
            feature_dim = getattr(self, MODULE_NAME).feature_dim
            # The record of a text-only T5 says "no features", for which the model would refuse it.
            state_dict[STATE_KEY] = encode_json({**provenance, "feature_dim": feature_dim})
        super().upgrade_state_dict_named(state_dict, name)


def _completed(cfg: Any) -> Any:
    """Fill in the defaults of ``fusion_heads`` and ``fusion_encoder_layers`` in a copy."""
    completed = complete_video_guided(VgT5Config, cfg)
    if cfg.fusion_encoder_layers is None:
        last = range(max(1, cfg.encoder_layers - 1), cfg.encoder_layers + 1)
        completed.fusion_encoder_layers = ",".join(map(str, last))
    if is_released(cfg):
        # The released VG-T5 builds a VTF and never calls it.
        completed.video_encoder_layers = 0
    return completed


register_presets(
    "vg_t5",
    {
        "vg_t5_small": SMALL,  # has six layers, the number that the paper gives for T5-base
        "vg_t5_base": BASE,  # the paper's size
        "vg_t5_large": LARGE,
        # video_encoder_heads is 1, so that features may have any number of channels
        "vg_t5_tiny": {
            **TINY,
            "fusion_dim": 6,
            "video_encoder_layers": 1,
            "video_encoder_heads": 1,
            "video_encoder_ffn_dim": 7,
        },
    },
)
