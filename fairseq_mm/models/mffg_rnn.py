"""Multistage fusion with forget gate, recurrent (``--arch mffg_rnn``, task
``video_summarization``).

Liu, Sun, Yu, Zhang, Xu. Multistage Fusion with Forget Gate for Multimodal Summarization in
Open-Domain Videos. EMNLP 2020. https://aclanthology.org/2020.emnlp-main.144
This is the model of the row "MFFG (RNN)" of Yu et al. 2021, Table 1.

A bidirectional GRU reads the transcript (2 layers, 2 x 256 = 512). The GRU's states a first receive
information from the frames v (2048) through a forget gate g:

    S = softmax(W_a a v^T / 8)      v~ = S v      g = sigmoid(W_f [a; v~])
    a <- ReLU(a + W [a; (W_m v~ + b_m) * g] + b)

Then the frames v receive information from the new a in the same way.

The decoder is the same as in ``hierarchical_attention_rnn``: a conditional GRU of 256 with additive
attention to a and to v, and then to the two results. The decoder's initial state is computed from
the mean of the new a.

Differs from the papers / left open:
- Fusion is computed once per batch, in the encoder; the released code computes it in the decoder.
- Padded words and frames get no attention in the fusion; in the released code they get attention.
- Frames have no positions, and no network encodes them, as in the released code.
- The task truncates transcripts (at 600 words in ``examples/video_summarization``). Dropout of 0.3
  is applied to the transcript's embeddings and states and to the input of the output layer, not
  between the layers of the GRU.
- The start token is fairseq's. Initial values are PyTorch's, except N(0, 0.1) for the embeddings of
  summary words.
"""

from typing import Any

from fairseq.models import register_model

from fairseq_mm.models._hierarchical_rnn import TINY, HierarchicalRnnConfig, build_hierarchical_rnn
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._video_summary import VideoSummaryModel


@register_model("mffg_rnn", dataclass=HierarchicalRnnConfig)
class MffgRnnModel(VideoSummaryModel):
    """Recurrent summarization model with cross fusion and hierarchical attention."""

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "MffgRnnModel":
        return cls(*build_hierarchical_rnn(cfg, task, fuses=True), task)


register_presets("mffg_rnn", {"mffg_rnn_tiny": TINY})
