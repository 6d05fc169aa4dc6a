"""SC-NLM: the structure-content neural language model (``--arch sc_nlm``, task
``multimodal_captioning``).

Kiros, Salakhutdinov, Zemel. Unifying Visual-Semantic Embeddings with Multimodal Neural Language
Models. 2014, section 2.5. https://arxiv.org/abs/1411.2539

It is the multiplicative model (``mlbl_f``) with an attribute vector u_n, of dimension G, that
changes from word to word. u is the content vector, and t_i the vector of the tag of word i, such as
its part of speech. Each word reads its own tag and the tags of the k next words; T^(i) is a matrix
for each of these k + 1 tags. The other symbols are explained in ``mlbl_f.py``:

    u_n      = ReLU(sum_(i=n)^(n+k) T^(i) t_i + T^(u) u + b)  (eq. 11)
    E        = (W^fk)' W^fv
    r        = sum_(j=1)^(n-1) C^(j) E(:, w_j)                (eq. 10)
    f        = (W^fk r) * (W^fd u_n)                          element by element
    P(w_n=i) = softmax_i(W^fv(:, i) . f + b_i)

u is the feature vector that the task provides, the embedding of an image. In training, it may
instead be the sentence's own embedding in the same space (``vse.py``), as in the paper. Tags are
``src_tokens``: one per word, and the tag STOP (``</s>`` in the dictionary of tags) for the end of
the sentence and all later positions.

Differs from the paper / left open:
- k is 3: the model reads the tags of the word itself and of the next three words. n-1 is 5.
- The paper's T^(i) are G x G and its t_i have K numbers, which fits because G = K. Here T^(i) are
  G x K, and T^(u) has as many columns as u has numbers.
- u is scaled to a mean square of one, see ``--feature-scaling``.
- Dropout and initial values differ from the paper. The scripts in
  ``examples/multimodal_captioning`` train with Adam by default, the paper with SGD.

No code was published.
"""

from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.models import register_model
from torch import Tensor, nn

from fairseq_mm.compat.options import option
from fairseq_mm.models._bases import BatchFirstEncoder, EncoderDecoderModel
from fairseq_mm.models._log_bilinear import (
    ContentConfig,
    ContentProjection,
    FactoredDecoder,
)
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import Provenance, list_words
from fairseq_mm.modules.linear import ContextWindow


@dataclass
class ScNlmConfig(ContentConfig):
    """Options of SC-NLM. The default sizes follow Kiros et al. 2014, section 2.5."""

    num_factors: int = option(100, "Number F of factors of the word vectors.")
    attribute_dim: int = option(300, "Dimension G of the attribute vector.")
    structure_length: int = option(
        3,
        "Number k of following part-of-speech tags that, with its own tag, predict a token.",
        least=0,
    )


class ScNlmEncoder(BatchFirstEncoder):
    """Encoder that computes the condition ``W^fd u_n`` [B, S + 1, F] of each word n (equation 11).

    Attributes:
        folded: [(k + 1) * number of tags, G] precomputed projection of each tag at each position of
            a window of k + 1 tags; None before :meth:`make_generation_fast_`.
    """

    folded: Optional[Tensor]

    def __init__(self, tags: Any, content: ContentProjection, cfg: ScNlmConfig) -> None:
        super().__init__()
        self.content = content
        self.pad = tags.pad()
        self.stop = tags.eos()
        self.structure_length = k = cfg.structure_length
        K, G = cfg.embedding_dim, cfg.attribute_dim
        self.tag_embedding = nn.Embedding(len(tags), K)
        nn.init.normal_(self.tag_embedding.weight, std=K**-0.5)
        self.structure = ContextWindow(k + 1, K, G)
        self.structure_bias = nn.Parameter(torch.zeros(G))
        self.factor_proj = nn.Linear(G, cfg.num_factors, bias=False)
        nn.init.xavier_uniform_(self.factor_proj.weight)
        # not saved, because it is computed from the weights
        self.register_buffer("folded", None, persistent=False)

    def make_generation_fast_(self, retain_dropout: bool = False, **unused: Any) -> None:
        """Precompute the projection of each tag at each position of a window."""
        with torch.no_grad():
            folded = self.structure.project_table(self.tag_embedding.weight)
            self.folded = folded.flatten(0, 1).contiguous()

    def forward(
        self,
        features: Tensor,
        padding_mask: Tensor,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
    ) -> dict[str, list[Tensor]]:
        """Compute the conditions of all words of sentences.

        Args:
            features: [B, N, D] features of N regions, which are averaged to the content vector.
            padding_mask: [B, N] bool, True at padding, and False at least once in each row.
            src_tokens: [B, S] tags, padded on either side.

        Returns:
            A dict with ``condition``, a list of one tensor [B, S + 1, F]. The last vector, for the
                end of the sentence, is computed from STOP tags only.
        """
        # Move tags to the left, and append STOP tags up to the length S + 1 + k: fairseq pads
        # sources on the left, but window n must begin at the tag of word n.
        S = src_tokens.size(1)
        first = src_tokens.ne(self.pad).long().argmax(1, keepdim=True)  # [B, 1]
        places = torch.arange(S + 1 + self.structure_length, device=src_tokens.device) + first
        tags = src_tokens.gather(1, places.clamp(max=S - 1))
        tags = tags.masked_fill((places >= S) | tags.eq(self.pad), self.stop)
        # The sums of the tags' projections in each window of k + 1 tags, [B, S + 1, G].
        if self.folded is None:
            sums = self.structure(self.tag_embedding(tags))
        else:
            length = self.structure_length + 1
            first_rows = torch.arange(length, device=tags.device)
            windows = tags.unfold(1, length, 1) + first_rows * self.tag_embedding.num_embeddings
            sums = F.embedding_bag(windows.flatten(0, 1), self.folded, mode="sum")
            sums = sums.view(*windows.shape[:2], -1)
        # T^(u) u and b are equal at all positions, so they are added once to the sums of the
        # windows.
        content = self.content(features, padding_mask)
        attributes = torch.relu(sums + (content + self.structure_bias).unsqueeze(1))
        return {"condition": [self.factor_proj(attributes)]}


@register_model("sc_nlm", dataclass=ScNlmConfig)
class ScNlmModel(EncoderDecoderModel):
    """Language model that reads the last words, tags of the next words, and a feature vector."""

    # The task adds tags to the batches of models with this attribute.
    reads_structure = True

    @classmethod
    def build_model(cls, cfg: ScNlmConfig, task: Any) -> "ScNlmModel":
        tags = task.structure_dictionary
        content = ContentProjection(task.feature_dim, cfg.attribute_dim, cfg)
        encoder = ScNlmEncoder(tags, content, cfg)
        decoder = FactoredDecoder(task.target_dictionary, cfg)
        provenance = Provenance(
            list_words(task.target_dictionary),
            task.feature_attributes,
            task.feature_dim,
            # The dictionary of tags is recorded as the source dictionary: other tags would be other
            # inputs.
            list_words(tags),
        )
        return cls(encoder, decoder, provenance)


TINY = {
    "embedding_dim": 8,
    "context_length": 3,
    "num_factors": 6,
    "attribute_dim": 9,
    "structure_length": 2,
}
register_presets("sc_nlm", {"sc_nlm_tiny": TINY})
