"""VG-T5: T5 whose layers look at a video (``--arch vg_t5_base``).

Yu, Dai, Liu, Fung. Vision Guided Generative Pre-trained Language Models for Multimodal Abstractive
Summarization. EMNLP 2021, section 3. https://github.com/HLTCHKUST/VG-GPLMs

Some layers of T5 get a third sub-layer after the feed-forward layer: words attend to frames, and
the result is added, see ``modules/video_fusion.py``. The frames are first encoded by their own
transformer (VTF), see ``modules/video_encoder.py``. Defaults are the best system of Tables 2 and 4:
multi-head attention, forget gate, VTF, fusion in the last two encoder layers. The options are
VG-BART's, and so are the rows of Tables 1 to 5 (see ``vg_bart.py``).

Checkpoints of ``--arch t5`` load with --finetune-from-model; missing parameters are added. Added
parameters have the attribute ``param_group = "added"``, for a parameter group with its own learning
rate.

Differs from the paper:
- The paper has equation 3's layer norm after each sub-layer. T5 has its norms before the
  sub-layers, and a residual stream of any scale between them. Here the fusion's ``LayerNorm(T +
  out)`` is computed from the stream at unit scale, and its result is multiplied by the scale of
  each position.
- T5-base has twelve layers in encoder and decoder, not six. So the last two are 11 and 12.
- As VG-BART: four heads, and one matrix for two.

Differs from the released code:
- There the one fusion stands after the encoder's last norm, and its layer norm is what the decoder
  reads; a VTF is built and never called. ``--compat released`` puts the fusion of the last encoder
  layer there, and has no VTF whatever --video-encoder-layers. As for VG-BART it attends to padded
  frames of a batch, has one head, drops out forget gates, and takes dot products' softmax over the
  text's positions.
- No prefix such as ``summarize:`` stands before a transcript, there as here.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

from fairseq.models import FairseqEncoderDecoderModel, register_model
from torch import Tensor

from fairseq_mm.models._backbone_weights import add_missing_t5_weights, check_t5_weights
from fairseq_mm.models._bases import LoadStateDictMixin
from fairseq_mm.models._options import option
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import Provenance
from fairseq_mm.models._vg_t5_parts import VgT5Decoder, VgT5Encoder
from fairseq_mm.models._video_guided import (
    VideoGuidedConfig,
    VideoReader,
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
    build_t5_parts,
    check_t5_options,
)


@dataclass
class VgT5Config(VideoGuidedConfig, T5Config):
    """T5-base with the best system of the paper's Table 2."""

    fusion_encoder_layers: Optional[str] = option(
        None,
        "Encoder layers with fusion, counted from 1; '' or none for none (default: the last two).",
    )  # type: ignore[assignment]


@register_model("vg_t5", dataclass=VgT5Config)
class VgT5Model(LoadStateDictMixin, FairseqEncoderDecoderModel):
    """Model that summarises transcripts and videos."""

    reads_video = True

    def __init__(self, encoder: VgT5Encoder, decoder: VgT5Decoder, provenance: Provenance) -> None:
        super().__init__(encoder, decoder)
        self.data_version = provenance
        # T5 starts from its padding token; the task hands start_index to the generator.
        self.start_index = decoder.dictionary.pad()

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "VgT5Model":
        """Build the model of a config.

        Raises:
            UserError: if an option has an unusable value, or the dictionaries differ.
        """
        check_t5_options(T5Config, cfg, task)
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

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor],
        prev_output_tokens: Tensor,
        features: Optional[Tensor] = None,
        padding_mask: Optional[Tensor] = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute logits, see :meth:`VgT5Encoder.forward` and :meth:`T5Decoder.forward`."""
        encoder_out = self.encoder(src_tokens, src_lengths, features, padding_mask)
        return self.decoder(prev_output_tokens, encoder_out)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Accept text-only T5s, too.

        Raises:
            UserError: if the checkpoint has another backbone.
        """
        check_t5_weights(self, state_dict)
        add_missing_t5_weights(self, state_dict)
        super().upgrade_state_dict_named(state_dict, name)


def _completed(cfg: Any) -> Any:
    """Fill options whose default is the value of another option."""
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
        "vg_t5_small": SMALL,  # six layers, as many as the paper writes of
        "vg_t5_base": BASE,  # the paper's
        "vg_t5_large": LARGE,
        # for tests and trials; one head for features of any number of channels
        "vg_t5_tiny": {
            **TINY,
            "fusion_dim": 6,
            "video_encoder_layers": 1,
            "video_encoder_heads": 1,
            "video_encoder_ffn_dim": 7,
        },
    },
)
