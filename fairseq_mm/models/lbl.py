"""LBL: the log-bilinear language model (``--arch lbl``, task ``multimodal_captioning``).

Mnih, Hinton. Three new graphical models for statistical language modelling. ICML 2007; as in
Kiros, Salakhutdinov, Zemel. Unifying Visual-Semantic Embeddings with Multimodal Neural Language
Models. 2014, section 2.3. https://arxiv.org/abs/1411.2539

With R the matrix of word vectors, r_w its row for word w, C^(j) a matrix for position j of the
context (the n-1 words before a word), and b_i the bias of word i:

    r        = sum_(j=1)^(n-1) C^(j) r_(w_j)                  (eq. 7)
    P(w_n=i) = softmax_i(r . r_i + b_i)                       (eq. 8)

The model reads no image; it is the baseline of the multimodal models.

Differs from the paper / left open:
- n-1 is 5, as in the code of Kiros et al.'s multimodal models (ICML 2014); the paper names no n.
- The start token stands for the words before the beginning of a sentence. In fairseq it is
  ``</s>``, the token that also ends a sentence.
- Dropout and initial values differ from the paper. The scripts in
  ``examples/multimodal_captioning`` train with Adam by default, the paper with plain SGD.
"""

from typing import Any

from fairseq.models import register_model
from torch import Tensor

from fairseq_mm.models._bases import BatchFirstEncoder, EncoderDecoderModel
from fairseq_mm.models._log_bilinear import (
    AdditiveDecoder,
    LogBilinearConfig,
)
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import Provenance


class LblEncoder(BatchFirstEncoder):
    """Encoder without output: the model reads only words, no image."""

    def forward(self, features: Tensor, padding_mask: Tensor) -> dict[str, list[Tensor]]:
        return {"condition": []}


@register_model("lbl", dataclass=LogBilinearConfig)
class LblModel(EncoderDecoderModel):
    """Log-bilinear language model of sentences, without images."""

    @classmethod
    def build_model(cls, cfg: LogBilinearConfig, task: Any) -> "LblModel":
        decoder = AdditiveDecoder(task.target_dictionary, cfg)
        return cls(LblEncoder(), decoder, Provenance.of_task(task))


TINY = {"embedding_dim": 8, "context_length": 3}
register_presets("lbl", {"lbl_tiny": TINY})
