"""MLBL-B: the log-bilinear model with an additive bias of the image (``--arch mlbl_b``, task
``multimodal_captioning``).

Kiros, Salakhutdinov, Zemel. Multimodal Neural Language Models. ICML 2014, section 4.1: "modality-
biased". It is the additive variant of Kiros et al. 2014, section 2.4
(https://arxiv.org/abs/1411.2539), and a baseline of Mao et al. 2015 (m-RNN).

With R the matrix of word vectors, r_w its row for word w, C^(j) a matrix for position j of the
context (the n-1 words before a word), b_i the bias of word i, C^(m) a matrix, and u the content
vector:

    r        = sum_(j=1)^(n-1) C^(j) r_(w_j) + C^(m) u
    P(w_n=i) = softmax_i(r . r_i + b_i)

u is the feature vector that the task provides: features or an embedding of an image. In training,
it may instead be the sentence's own embedding in the same space (``vse.py``). The features of
several regions are averaged.

Differs from the paper / left open:
- The released code has a hidden layer between the image and C^(m); the paper and this model have
  none.
- u is scaled to a mean square of one, see ``--feature-scaling``. Dropout and initial values differ
  from the paper; C^(m) is initialised with zeros, so that the model begins as ``lbl``.
- n-1 is 5, and word vectors have 300 dimensions, as in the other log-bilinear models.
"""

from typing import Any

from fairseq.models import register_model
from torch import nn

from fairseq_mm.models._bases import EncoderDecoderModel
from fairseq_mm.models._log_bilinear import (
    AdditiveDecoder,
    ContentConfig,
    ContentEncoder,
    ContentProjection,
)
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import Provenance


@register_model("mlbl_b", dataclass=ContentConfig)
class MlblBModel(EncoderDecoderModel):
    """Language model that adds a projected image vector to the prediction from the last words."""

    @classmethod
    def build_model(cls, cfg: ContentConfig, task: Any) -> "MlblBModel":
        content = ContentProjection(task.feature_dim, cfg.embedding_dim, cfg)
        nn.init.zeros_(content.weight)  # start as lbl, because a larger term would hide r
        encoder = ContentEncoder(content)
        decoder = AdditiveDecoder(task.target_dictionary, cfg)
        return cls(encoder, decoder, Provenance.of_task(task))


TINY = {"embedding_dim": 8, "context_length": 3}
register_presets("mlbl_b", {"mlbl_b_tiny": TINY})
