"""MLBL-F: the multiplicative language model, factored (``--arch mlbl_f``, task
``multimodal_captioning``).

Kiros, Salakhutdinov, Zemel. Unifying Visual-Semantic Embeddings with Multimodal Neural Language
Models. 2014, section 2.4. https://arxiv.org/abs/1411.2539. The model was first published in: Kiros,
Salakhutdinov, Zemel. Multimodal Neural Language Models. ICML 2014.

The word vectors T^u of dimension K depend on the content vector u of dimension G. They have F
factors: W^fv is F x vocabulary, W^fd F x G, and W^fk F x K. C^(j) is a matrix for position j of the
context (the n-1 words before a word), and b_i is the bias of word i:

    T^u      = (W^fv)' diag(W^fd u) W^fk                      (eq. 9)
    E        = (W^fk)' W^fv
    r        = sum_(j=1)^(n-1) C^(j) E(:, w_j)                (eq. 10)
    f        = (W^fk r) * (W^fd u)                            element by element
    P(w_n=i) = softmax_i(W^fv(:, i) . f + b_i)

u is the feature vector that the task provides: features or an embedding of an image. In training,
it may instead be the sentence's own embedding in the same space (``vse.py``). The features of
several regions are averaged.

Differs from the paper / left open:
- G is the dimension of the features, which may differ from K.
- u is scaled to a mean square of one, see ``--feature-scaling``: an embedding of unit length would
  make the factors small.
- n-1 is 5. Dropout and initial values differ from the paper. The scripts in
  ``examples/multimodal_captioning`` train with Adam by default, the paper with SGD.

The code of the ICML paper has a hidden layer of 441 ReLU units between the image and W^fd, and also
adds the output of this layer to r. It has K = 100 and F = 50, and initialises word vectors by a
singular value decomposition of trained vectors.
"""

from dataclasses import dataclass
from typing import Any

from fairseq.models import register_model

from fairseq_mm.compat.options import option
from fairseq_mm.models._bases import EncoderDecoderModel
from fairseq_mm.models._log_bilinear import (
    ContentConfig,
    ContentEncoder,
    ContentProjection,
    FactoredDecoder,
)
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import Provenance


@dataclass
class MlblFConfig(ContentConfig):
    """Options of MLBL-F. The default sizes follow Kiros et al. 2014, section 2.5."""

    num_factors: int = option(100, "Number F of factors of the word vectors.")


@register_model("mlbl_f", dataclass=MlblFConfig)
class MlblFModel(EncoderDecoderModel):
    """Language model whose word vectors depend on a feature vector, such as an image's."""

    @classmethod
    def build_model(cls, cfg: MlblFConfig, task: Any) -> "MlblFModel":
        encoder = ContentEncoder(ContentProjection(task.feature_dim, cfg.num_factors, cfg))
        decoder = FactoredDecoder(task.target_dictionary, cfg)
        return cls(encoder, decoder, Provenance.of_task(task))


TINY = {"embedding_dim": 8, "context_length": 3, "num_factors": 6}
register_presets("mlbl_f", {"mlbl_f_tiny": TINY})
