"""Multistage fusion with forget gate, with transformers (``--arch mffg_transformer``, task
``video_summarization``).

Liu, Sun, Yu, Zhang, Xu. Multistage Fusion with Forget Gate for Multimodal Summarization in
Open-Domain Videos. EMNLP 2020. https://aclanthology.org/2020.emnlp-main.144
This is the model of the row "MFFG (TF)" of Yu et al. 2021, Table 1.

A transformer reads the transcript (4 layers of 512). The transformer's states a first receive
information from the frames v (2048, with learned positions) through a forget gate g:

    S = softmax(W_a a v^T / 8)      v~ = S v      g = sigmoid(W_f [a; v~])
    a <- ReLU(a + W [a; (W_m v~ + b_m) * g] + b)

Then the frames v receive information from the new a in the same way.

In the first layer of the decoder, the state h attends to a and to v and then, additively, to the
two results z_m:

    z = sum_m b_m z_m                   b = softmax_m(v tanh(W h + c + U_m z_m))

The other three layers attend only to a.

Differs from the papers / left open:
- Fusion is computed once per batch. The released decoder computes it again at every decoding step,
  with the result of the step before as input.
- Padded words and frames get no attention in fusion and decoder; in the released code they get
  attention.
- After the fusion, each side has its own layer norm. The released code has no norm for the video,
  and uses the decoder's last norm for the text.
- The two results z_m are combined without a norm. The released code applies one more norm to both,
  and applies the norm of the first layer's feed-forward part a second time, to this part's output.
- One matrix projects frames to keys, and one to values; the released code first projects the frames
  to 512 channels.
- Transcript and summary share the word embeddings, but not the positions. The output layer has its
  own matrix. Initial values are N(0, 0.1) for embeddings and positions, Xavier's for attention, and
  PyTorch's for all other weights.
"""

from typing import Any

from fairseq.models import register_model

from fairseq_mm.models._hierarchical_transformer import (
    TINY,
    FusedVideo,
    HierarchicalTransformerConfig,
    build_hierarchical_transformer,
)
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._video_summary import VideoSummaryModel


@register_model("mffg_transformer", dataclass=HierarchicalTransformerConfig)
class MffgTransformerModel(VideoSummaryModel):
    """Transformer summarizer with cross fusion, and hierarchical attention in the decoder."""

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "MffgTransformerModel":
        encoder, decoder = build_hierarchical_transformer(
            cfg,
            task,
            video=FusedVideo(cfg.embed_dim, task.feature_dim, cfg.video_positions),
            video_dim=task.feature_dim,
            sees_video=[True] + [False] * (cfg.decoder_layers - 1),
        )
        return cls(encoder, decoder, task)


register_presets("mffg_transformer", {"mffg_transformer_tiny": TINY})
