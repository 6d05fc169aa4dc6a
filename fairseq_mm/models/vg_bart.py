"""VG-BART: BART whose layers attend to a video (``--arch vg_bart_base``).

Yu, Dai, Liu, Fung. Vision Guided Generative Pre-trained Language Models for Multimodal Abstractive
Summarization. EMNLP 2021, section 3. https://github.com/HLTCHKUST/VG-GPLMs

Some layers of fairseq's BART get a third sub-layer after the feed-forward layer: words attend to
frames, and the result is added, see ``modules/video_fusion.py``. The frames are first encoded by
their own transformer (VTF), see ``models/_video_guided.py``. Defaults are the best system of
Tables 2 and 4: multi-head attention, forget gate, VTF, fusion in the last two encoder layers. The
systems of Tables 1 to 5, of section 5.2 and of Figure 3 have these options:

    Table 1, dot-product    --fusion dot_product --forget-gate off --video-encoder-layers 0
    Table 1, multi-head     --forget-gate off --video-encoder-layers 0
    Table 2, w/ FG          --video-encoder-layers 0
    Table 2, w/ VTF         --forget-gate off
    section 5.2, variant    --fusion dot_product_projected
    Figure 3                --arch vg_bart_dot_product_fg
    best released           --arch vg_bart_dot_product_fg_vtf
    Table 3, noise          --noise-features (an option of the task)
    Table 4                 --fusion-encoder-layers 1 ... 1,2,3,4,5,6
    Table 5                 --fusion-encoder-layers '' --fusion-decoder-layers 2

BART's published checkpoints are loaded with ``--finetune-from-model``; the parameters of fusion and
VTF, which these checkpoints lack, keep their initial values. These parameters have the attribute
``param_group = "added"``, for a parameter group with its own learning rate.

Differs from the paper:
- The paper does not give the number of heads of multi-head attention. Here it has 4 heads of 64
  channels, as wide as BART's own heads.
- Appendix A projects queries, keys and values a second time for each head, and also the heads'
  output. Here, two matrices in succession are one matrix. The projection of the heads' output is a
  separate matrix only with several heads and a forget gate, because the gate is applied between
  this matrix and the matrix of equation 11.
- Figure 3 shows forget gate scores of "the VG-BART with dot-product attention", so this model has a
  forget gate here. The paper does not say which layers of this model have fusion; here they are 5
  and 6, as in the best system of Table 4.

Differs from the released code. ``--compat released`` follows the released code in the first four:
- The softmax of dot products is over the frames. The released softmax is over the text's positions,
  padding included.
- Padded frames are masked. The released code attends to padding up to the longest video of the
  batch, so that the output depends on the other examples of the batch.
- The forget gate has no dropout of its own.
- Multi-head attention has 4 heads; in the released code it has one.
- The script and the log of the best released checkpoint name another system than the paper: dot
  product in the last encoder layer only, forget gate and VTF.
- All added parameters are trained, because their parameter group is selected by the attribute. The
  released code selects parameters by shape and value, and leaves the biases of VTF and fusion out.
- Any layers can have fusion, each with its own weights; in the released code only one encoder layer
  has fusion.
"""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any, Optional

from fairseq.models import BaseFairseqModel, register_model
from fairseq.models.bart import BARTModel
from fairseq.models.bart.model import bart_large_architecture
from fairseq.models.transformer.transformer_legacy import base_architecture
from torch import Tensor

from fairseq_mm.compat.options import option
from fairseq_mm.errors import UserError
from fairseq_mm.models._bases import LoadStateDictMixin, check_one_dictionary
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import MODULE_NAME, STATE_KEY, Provenance
from fairseq_mm.models._vg_bart_parts import DUPLICATES, VgBartDecoder, VgBartEncoder
from fairseq_mm.models._video_guided import (
    VideoGuidedConfig,
    VideoReader,
    add_missing_weights,
    build_fusions,
    check_video_guided,
    complete_video_guided,
)


@dataclass
class VgBartConfig(VideoGuidedConfig):
    """Options of VG-BART, named as in fairseq's BART. The default sizes follow BART base."""

    encoder_embed_dim: int = option(
        768, "Dimension of embeddings and layers of encoder and decoder."
    )
    encoder_ffn_embed_dim: int = option(3072, "Dimension of the encoder's feed-forward layers.")
    encoder_layers: int = option(6, "Number of encoder layers.")
    encoder_attention_heads: int = option(
        12, "Number of attention heads of the encoder.", divides="encoder_embed_dim"
    )
    decoder_ffn_embed_dim: int = option(3072, "Dimension of the decoder's feed-forward layers.")
    decoder_layers: int = option(6, "Number of decoder layers.")
    decoder_attention_heads: int = option(
        12, "Number of attention heads of the decoder.", divides="encoder_embed_dim"
    )
    dropout: float = option(0.1, "Dropout probability of BART and of the fusions.")
    attention_dropout: float = option(0.0, "Dropout probability of attention weights.")
    activation_dropout: float = option(0.0, "Dropout probability in feed-forward layers.")
    encoder_layerdrop: float = option(
        0.0, "Probability that an encoder layer and its fusion are left out in training."
    )
    decoder_layerdrop: float = option(
        0.0, "Probability that a decoder layer and its fusion are left out in training."
    )
    max_source_positions: int = option(1024, "Maximum length of a source, in tokens.")
    max_target_positions: int = option(1024, "Maximum length of a target, in tokens.")
    checkpoint_activations: bool = option(
        False, "Save memory: recompute BART's layers in the backward pass."
    )


def bart_options(cfg: Any) -> Namespace:
    """Convert the config of a VG-BART to the options of fairseq's BART, with its defaults."""
    names = VgBartConfig.__dataclass_fields__.keys() - VideoGuidedConfig.__dataclass_fields__.keys()
    options = Namespace(task="", **{name: getattr(cfg, name) for name in names})
    # fairseq's BART gets its defaults from functions that fill a Namespace: BART's first, then the
    # Transformer's for the rest.
    bart_large_architecture(options)
    base_architecture(options)
    return options


@register_model("vg_bart", dataclass=VgBartConfig)
class VgBartModel(LoadStateDictMixin, BARTModel):
    """Model that summarises transcripts and videos (VG-BART)."""

    reads_video = True
    # options come from the dataclass, not from BARTModel
    add_args: Any = classmethod(BaseFairseqModel.add_args.__func__)

    @classmethod
    def hub_models(cls) -> dict[str, str]:
        return {}

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "VgBartModel":
        cfg = complete_video_guided(VgBartConfig, cfg)
        video_dim = getattr(task, "feature_dim", 0)
        check_video_guided(cfg, video_dim=video_dim)
        dictionary = task.target_dictionary
        check_one_dictionary(task)
        options = bart_options(cfg)
        fusions = build_fusions(cfg, text_dim=cfg.encoder_embed_dim, video_dim=video_dim)
        embed_tokens = cls.build_embedding(options, dictionary, cfg.encoder_embed_dim)
        encoder = VgBartEncoder(
            options,
            dictionary,
            embed_tokens,
            video=VideoReader.of_config(cfg, video_dim=video_dim),
            fusions=fusions["encoder"],
            gives_video=len(fusions["decoder"]) > 0,
        )
        decoder = VgBartDecoder(options, dictionary, embed_tokens, fusions=fusions["decoder"])
        model = cls(options, encoder, decoder)
        model.add_module(MODULE_NAME, Provenance.of_task(task, has_source=True))
        return model

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor],
        prev_output_tokens: Tensor,
        features: Optional[Tensor] = None,
        padding_mask: Optional[Tensor] = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, list[Optional[Tensor]]]]:
        """Compute logits [B, T, V] of summaries [B, T], and a dict of attention weights."""
        encoder_out = self.encoder(src_tokens, src_lengths, features, padding_mask)
        return self.decoder(prev_output_tokens, encoder_out=encoder_out)

    def set_beam_size(self, beam: int) -> None:
        """Do nothing: this decoder does not need the beam size to find the beams of an example."""
        # After this call, fairseq's BART would take the rows of every later batch for beams, so
        # that training after a validation with generated text would read the transcripts of other
        # examples.

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Convert weights of a text-only BART, or from fairseq's own code, to this model's."""
        own, key = self.state_dict(), "encoder.embed_tokens.weight"
        num_words, expected = len(state_dict.get(key, ())), len(own[key])
        # fairseq's own BART task appends <mask> to the dictionary; BARTModel drops its row.
        has_mask = num_words == expected + 1 and "<mask>" not in self.encoder.dictionary
        # With a record of the data, the comparison of dictionaries gives a better message.
        is_compared = num_words > 0 and STATE_KEY in state_dict
        if num_words != expected and not has_mask and not is_compared:
            raise UserError(
                f"the checkpoint has {num_words} word embeddings of BART, but the dictionary has "
                f"{expected}: prepare the data with the checkpoint's own dict.txt, and "
                "--padding-factor 1."
            )
        # Stock fairseq saves some parameters of encoder layers twice.
        for key in state_dict.keys() - own.keys():
            if key.startswith("encoder.layers.") and key.endswith(DUPLICATES):
                del state_dict[key]
        add_missing_weights(self, state_dict)
        # Published BARTs have no record of their data.
        state_dict.setdefault(STATE_KEY, own[STATE_KEY])
        super().upgrade_state_dict_named(state_dict, name)


register_presets(
    "vg_bart",
    {
        "vg_bart_base": {},  # the paper's system is the default
        "vg_bart_large": {
            "encoder_embed_dim": 1024,
            "encoder_ffn_embed_dim": 4096,
            "encoder_layers": 12,
            "encoder_attention_heads": 16,
            "decoder_ffn_embed_dim": 4096,
            "decoder_layers": 12,
            "decoder_attention_heads": 16,
            "fusion_encoder_layers": "11,12",
        },
        # the model of Figure 3, and the best of the released checkpoints, both of base size
        "vg_bart_dot_product_fg": {"fusion": "dot_product", "video_encoder_layers": 0},
        "vg_bart_dot_product_fg_vtf": {"fusion": "dot_product", "fusion_encoder_layers": "6"},
        # video_encoder_heads is 1, so that features may have any number of channels
        "vg_bart_tiny": {
            "encoder_embed_dim": 8,
            "encoder_ffn_embed_dim": 12,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_ffn_embed_dim": 10,
            "decoder_layers": 2,
            "decoder_attention_heads": 2,
            "fusion_encoder_layers": "1,2",
            "fusion_dim": 6,
            "video_encoder_layers": 1,
            "video_encoder_heads": 1,
            "video_encoder_ffn_dim": 7,
        },
    },
)
