"""Hierarchical attention over a transcript and a video, recurrent
(``--arch hierarchical_attention_rnn``, task ``video_summarization``).

Palaskar, Libovicky, Gella, Metze. Multimodal Abstractive Summarization for How2 Videos. ACL 2019.
https://arxiv.org/abs/1906.07901
Libovicky, Helcl. Attention Strategies for Multi-Source Sequence-to-Sequence Learning. ACL 2017,
section 3.2. https://arxiv.org/abs/1704.06567
This is the model of the row "HA (RNN)" of Yu et al. 2021, Table 1.

A bidirectional GRU reads the transcript (2 layers, 2 x 256). Each word of the summary is a step of
a conditional GRU (256), which consists of two GRUs. The state h1 of the first GRU attends to each
of the two sources m, the transcript's states and the frames, by additive attention, and then to the
two results z_m:

    z_m = V_m sum_i a_mi x_mi           a_m = softmax_i(w_m tanh(K_m x_mi + Q_m h1))
    z = sum_m b_m z_m                   b = softmax_m(v tanh(W h1 + c + U_m z_m))

x_mi is element i of source m; capital letters are matrices. The second GRU reads z, see
``_hierarchical_rnn.py``.

Differs from the papers / left open:
- No network encodes the frames, as in the released multimodal code, which only projects them for
  the attention. The order of the frames therefore has no effect. (Without text, Palaskar et al.
  encode the frames with a GRU.)
- Sizes, dropout and the tying of the summary's input and output embeddings are taken from the
  recurrent model in the code of Liu et al. 2020.
- The attention has no sentinel (Libovicky and Helcl 2017), and the start token is fairseq's.
- Initial values are PyTorch's, except N(0, 0.1) for the embeddings of summary words.
- Padding of either source is masked in the attention and not read by the GRU.
"""

from typing import Any

from fairseq.models import register_model

from fairseq_mm.models._hierarchical_rnn import TINY, HierarchicalRnnConfig, build_hierarchical_rnn
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._video_summary import VideoSummaryModel


@register_model("hierarchical_attention_rnn", dataclass=HierarchicalRnnConfig)
class HierarchicalAttentionRnnModel(VideoSummaryModel):
    """Recurrent summarization model with hierarchical attention."""

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "HierarchicalAttentionRnnModel":
        return cls(*build_hierarchical_rnn(cfg, task, fuses=False), task)


register_presets("hierarchical_attention_rnn", {"hierarchical_attention_rnn_tiny": TINY})
