"""Multistage fusion with forget gate, with transformers (``--arch mffg_transformer``, task
``video_summarization``).

Liu, Sun, Yu, Zhang, Xu. Multistage Fusion with Forget Gate for Multimodal Summarization in
Open-Domain Videos. EMNLP 2020. https://aclanthology.org/2020.emnlp-main.144
The row "MFFG (TF)" of Yu et al. 2021, Table 1.

A transformer reads the transcript (4 layers of 512). Its states a and the frames v (2048, with
learned positions) are fused through a forget gate, first a with v, then v with the new a:

    S = softmax(W_a a v^T / 8)      v~ = S v      g = sigmoid(W_f [a; v~])
    a <- ReLU(a + W [a; (W_m v~ + b_m) * g] + b)

The first layer of the decoder attends to a and to v and then, additively, to the two results:

    z = sum_m b_m z_m                   b = softmax_m(v tanh(W h + c + U_m z_m))

the other three attend only to a.

Differs from the papers / left open:
- Fusion is computed once a batch; the released decoder computes it at every step, from the result
  of the step before.
- Padded words and frames get no attention, in fusion and decoder; in the released code they do.
- After the fusion, each side has its own layer norm. The released code has no norm for the video,
  and uses the decoder's last norm for the text.
- The two contexts are combined without a norm; the released code applies one more norm to both,
  and the norm of the first layer's feed-forward part a second time to its output.
- Frames are projected to keys and values at once; the released code projects them to 512 first.
- Transcript and summary share word embeddings, but not positions, and not with the output layer.
  Initial values: embeddings and positions N(0, 0.1), attention Xavier's, others PyTorch's.
"""

from dataclasses import dataclass
from typing import Any

from fairseq.models import register_model

from fairseq_mm.models._frames import FusedVideo
from fairseq_mm.models._hierarchical_transformer import (
    TINY,
    HierarchicalTransformerConfig,
    build_hierarchical_transformer,
    check_transformer,
)
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._video_summary import VideoSummaryModel


@dataclass
class MffgTransformerConfig(HierarchicalTransformerConfig):
    """Sizes of the released configuration."""


@register_model("mffg_transformer", dataclass=MffgTransformerConfig)
class MffgTransformerModel(VideoSummaryModel):
    """Transformer summarizer with cross fusion, and hierarchical attention in the decoder."""

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "MffgTransformerModel":
        check_transformer(MffgTransformerConfig, cfg, task)
        encoder, decoder = build_hierarchical_transformer(
            cfg,
            task,
            video=FusedVideo(cfg.embed_dim, task.feature_dim, cfg.video_positions),
            video_dim=task.feature_dim,
            sees_video=[True] + [False] * (cfg.decoder_layers - 1),
        )
        return cls(encoder, decoder, task)


register_presets("mffg_transformer", {"mffg_transformer_tiny": TINY})
