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
    """Options of VG-T5.

    The defaults are the sizes of T5-base, and the video fusion of the best system of Yu et al.
    2021, Table 2.
    """

    fusion_encoder_layers: Optional[str] = option(
        None,
        "Encoder layers with fusion, counted from 1, such as 11,12; '' or none for no layer "
        "(default: the last two layers).",
    )  # type: ignore[assignment]


@register_model("vg_t5", dataclass=VgT5Config)
class VgT5Model(LoadStateDictMixin, FairseqEncoderDecoderModel):
    """Model that summarises transcripts and videos (VG-T5).

    ``provenance``, the record of dictionary and features, becomes part of the state dict.
    """

    reads_video = True

    def __init__(self, encoder: VgT5Encoder, decoder: VgT5Decoder, provenance: Provenance) -> None:
        super().__init__(encoder, decoder)
        self.data_version = provenance
        # T5 starts from its padding token; the task hands start_index to the generator.
        self.start_index = decoder.dictionary.pad()

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "VgT5Model":
        """Build the model of a config."""
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
        """Compute logits [B, T, V] of summaries [B, T], and a dict without attention weights.

        See :meth:`VgT5Encoder.forward` for the inputs of the encoder.
        """
        encoder_out = self.encoder(src_tokens, src_lengths, features, padding_mask)
        return self.decoder(prev_output_tokens, encoder_out)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Add the parameters of the video fusion to the weights of a text-only T5.

        Weights of a VG-T5 do not change.
        """
        check_t5_weights(self, state_dict)
        add_missing_t5_weights(self, state_dict)
        super().upgrade_state_dict_named(state_dict, name)


def _completed(cfg: Any) -> Any:
    """Return the options with values for ``fusion_heads`` and ``fusion_encoder_layers``."""
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
