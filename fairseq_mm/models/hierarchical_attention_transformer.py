"""Hierarchical attention over a transcript and a video, with transformers
(``--arch hierarchical_attention_transformer``, task ``video_summarization``).

Libovicky, Helcl. Attention Strategies for Multi-Source Sequence-to-Sequence Learning. ACL 2017,
section 3.2. https://arxiv.org/abs/1704.06567
Palaskar, Libovicky, Gella, Metze. Multimodal Abstractive Summarization for How2 Videos. ACL 2019.
https://arxiv.org/abs/1906.07901
This is the model of the row "HA (TF)" of Yu et al. 2021, Table 1, whose figures come from Liu et
al. 2020.

One encoder reads the words, another one the projected frames, both with learned positions. In every
decoder layer the state h attends to each of these sources m by multi-head attention, and then to
the two results z_m:

    z = sum_m b_m z_m                   b = softmax_m(v tanh(W h + c + U_m z_m))

Differs from the papers / left open:
- No paper or code describes this model: Palaskar et al. have a recurrent model, and Liu et al.
  only name it. Sizes, pre-norm, learned positions, dropout and the sharing of embeddings (between
  transcript and summary, not with the output layer) are taken from Liu et al.'s own transformer.
- The attention to the two results z_m is the additive attention of the recurrent model, as in Liu
  et al.'s transformer, not the multi-head attention of Libovicky, Helcl and Marecek 2018.
- The encoders of video and text are equally deep (``--video-encoder-layers``).
- Initial values are N(0, 0.1) for embeddings and positions, Xavier's for attention, and PyTorch's
  for all other weights.
"""

from dataclasses import dataclass
from typing import Any

from fairseq.models import register_model

from fairseq_mm.compat.options import option
from fairseq_mm.models._hierarchical_transformer import (
    TINY,
    HierarchicalTransformerConfig,
    VideoLayers,
    build_hierarchical_transformer,
)
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._video_summary import VideoSummaryModel


@dataclass
class HierarchicalAttentionTransformerConfig(HierarchicalTransformerConfig):
    """Options of hierarchical attention with transformers."""

    video_encoder_layers: int = option(4, "Number of encoder layers over the frames.")


@register_model(
    "hierarchical_attention_transformer", dataclass=HierarchicalAttentionTransformerConfig
)
class HierarchicalAttentionTransformerModel(VideoSummaryModel):
    """Transformer summarization model with hierarchical attention."""

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "HierarchicalAttentionTransformerModel":
        encoder, decoder = build_hierarchical_transformer(
            cfg,
            task,
            video=VideoLayers(task.feature_dim, cfg),
            video_dim=cfg.embed_dim,
            sees_video=[True] * cfg.decoder_layers,
        )
        return cls(encoder, decoder, task)


register_presets(
    "hierarchical_attention_transformer",
    {"hierarchical_attention_transformer_tiny": {**TINY, "video_encoder_layers": 1}},
)
