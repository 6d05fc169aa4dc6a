"""Gated convolutional language models of prompts and of stories (``--arch gcnn_lm_self_att``).

They are trained with fairseq's task ``language_modeling`` and ``--sample-break-mode eos``, so that
each text is a sample.

Dauphin, Fan, Auli, Grangier. Language Modeling with Gated Convolutional Networks. ICML 2017.
https://arxiv.org/abs/1612.08083; with the self-attention of Fan, Lewis, Dauphin 2018,
https://arxiv.org/abs/1805.04833, sections 3.1, 5.1, 5.4 and 9.1.

    gcnn_lm            convolutions only
    gcnn_lm_self_att   with gated multi-scale self-attention: the model that writes prompts

Differs from the papers:
- Both models are the story model's decoder (``conv_story.py``) without attention to a prompt. They
  therefore have position embeddings, and one untied output layer for all words, where Dauphin et
  al. have an adaptive softmax.
- The layers were not compared with the lists in Fan et al.'s section 9.1. They are four layers of
  512 channels, two of 768 and three of 1024, with kernels of 4, 4, 1, 4, 4, 4, 1, 3 and 3.
"""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.models import FairseqLanguageModel, register_model
from omegaconf import II
from torch import Tensor

from fairseq_mm.compat.options import option
from fairseq_mm.models._bases import LoadStateDictMixin
from fairseq_mm.models._conv_decoder import StoryDecoder
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import MODULE_NAME, Provenance
from fairseq_mm.models.conv_story import build_trunk

DECODER_LAYERS = (
    "[(512, 4)] * 2 + [(512, 1)] + [(512, 4)] + [(768, 4)] * 2 + [(1024, 1)] + [(1024, 3)] * 2"
)
TRUNK_OPTIONS = (
    *("decoder_embed_dim", "decoder_layers", "decoder_out_embed_dim", "dropout"),
    *("self_attention", "multihead_self_attention_nheads", "gated_attention", "downsample"),
)


@dataclass
class GcnnLmConfig(FairseqDataclass):
    """Options of the gated convolutional language model, after Fan et al. 2018, section 9.1."""

    dropout: float = option(0.1, "Dropout probability of embeddings and of layers' inputs.")
    decoder_embed_dim: int = option(300, "Dimension of token embeddings.")
    decoder_layers: str = option(DECODER_LAYERS, "Layers as a list of (channels, kernel width).")
    decoder_out_embed_dim: int = option(300, "Input dimension of the output layer.")
    self_attention: str = option(
        "False", "Whether layers attend to the text so far: True, False or a list of one per layer."
    )
    multihead_self_attention_nheads: int = option(
        4, "Number of heads of self-attention.", least=1, divides="decoder_embed_dim"
    )
    gated_attention: str = option(
        "True", "Compute queries, keys and values of self-attention by networks with gates."
    )
    downsample: str = option(
        "True", "Let head n of the self-attention attend only to every nth position."
    )
    max_positions: Optional[int] = option(
        None,
        "Number of rows of the position embedding (default: --tokens-per-sample + 2).",
        least=3,
    )
    tokens_per_sample: int = II("task.tokens_per_sample")


@register_model("gcnn_lm", dataclass=GcnnLmConfig)
class GcnnLmModel(LoadStateDictMixin, FairseqLanguageModel):
    """Gated convolutional language model."""

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "GcnnLmModel":
        rows = cfg.max_positions
        if rows is None:
            # two rows of fairseq's tables belong to padding and to the symbol before it
            rows = cfg.tokens_per_sample + 2
        options = Namespace(
            **{name: getattr(cfg, name) for name in TRUNK_OPTIONS}, max_target_positions=rows
        )
        trunk = build_trunk(options, task.target_dictionary, has_source=False)
        model = cls(StoryDecoder(task.target_dictionary, trunk, dropout=cfg.dropout))
        model.add_module(MODULE_NAME, Provenance.of_task(task))
        return model

    def forward(self, src_tokens: Tensor, **unused: Any) -> tuple[Tensor, None]:
        """Compute logits [B, T, V] from tokens [B, T], the start token first, and None."""
        return self.decoder(src_tokens)

    @property
    def supported_targets(self) -> set[str]:
        # fairseq refuses to build a language model that does not support the targets of its task.
        return {"future"}


SELF_ATTENTION = {"self_attention": "True"}
register_presets(
    "gcnn_lm",
    {
        "gcnn_lm_self_att": SELF_ATTENTION,
        "gcnn_lm_tiny": {
            **SELF_ATTENTION,
            "decoder_embed_dim": 16,
            "decoder_out_embed_dim": 12,
            "decoder_layers": "[(20, 4)] + [(24, 3)] + [(24, 1)]",
        },
    },
)
