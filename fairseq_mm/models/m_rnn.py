"""m-RNN: multimodal recurrent neural network (``--arch m_rnn``, task ``multimodal_captioning``).

Mao, Xu, Yang, Wang, Huang, Yuille. Deep Captioning with Multimodal Recurrent Neural Networks
(m-RNN). ICLR 2015. https://arxiv.org/abs/1412.6632

For each step t of a sentence, with I the image's feature vector, U and V matrices; numbers at the
end of a line are dimensions:

    e(t) = first embedding layer (word t)                          128
    w(t) = second embedding layer (e(t))                           256
    r(t) = ReLU(U r(t-1) + w(t))                        (eq. 2)    256
    m(t) = g(V_w w(t) + V_r r(t) + V_I I)               (eq. 3)    512
    g(x) = 1.7159 tanh(2/3 x)                           (eq. 4)
    P(word t+1) = softmax(output layer of m(t))

``m_rnn_base`` is the paper's RNN baseline, the same network without the term V_I I of the image.
Six other architectures are the variants of Table 8 and Figure 3:

    m_rnn_no_emb_input           m(t) without V_w w(t)
    m_rnn_one_layer_emb          one embedding layer of 256 instead of the two
    m_rnn_emb_one_input          m(t) takes V_w e(t) instead of V_w w(t)
    m_rnn_vis_in_rnn             the image enters embedding layer II, not m(t)
    m_rnn_vis_in_rnn_both        the image enters embedding layer II and m(t)
    m_rnn_vis_in_rnn_both_shared the image enters both through shared weights

``--recurrent-activation`` replaces the ReLU by a function of footnote 3: ``sigmoid``, or
``scaled_tanh``, which is g. ``--recurrent-input concatenation`` is the recurrence of the simple
RNN, in which one matrix U is multiplied with the concatenation of word and state:

    r(t) = f(U [w(t); r(t-1)])                          (eq. 1)

where f is the function of ``--recurrent-activation``, in the paper the sigmoid.

``--attention soft`` replaces the image's vector I by a weighted mean z(t) of the vectors x_i of its
regions (``fairseq-mm extract --grid``), as Xu et al. 2015 (https://arxiv.org/abs/1502.03044,
section 4.2) do in an LSTM:

    e_i(t) = v . tanh(K x_i + Q r(t) + b)
    a(t) = softmax_i(e_i(t))
    z(t) = sum_i a_i(t) x_i
    m(t) = g(V_w w(t) + V_r r(t) + V_I z(t))

K, Q, v and b are learned; K x_i has the dimension of the recurrent layer. Xu et al.'s query is the
state before word t. Their gate, the regulariser of a(t) and the initial state from the mean of the
regions are left out.

The loss is ``--criterion cross_entropy``, in nats. Equation 6 has a loss in bits and a penalty
lambda |theta|^2 of the weights theta. The same penalty is ``--optimizer adam_l2 --weight-decay W``
with W = 2 ln 2 lambda.

Differs from the paper:
- Embedding layer II is linear: the paper names no non-linearity, and adds w(t) to the recurrence.
- Layer II, the multimodal layer and the output layer have biases; the paper mentions no biases.
- The paper gives no dropout, initial values and scaling of features; for the choices here, see the
  options.
- The image's matrix to embedding layer II, V_I^(1), has 256 rows; its matrix to the multimodal
  layer, V_I^(2), has 512. Shared weights mean that V_I^(1) is the first 256 rows of V_I^(2).
- ``examples/multimodal_captioning/train_m_rnn.sh`` trains without the penalty, because the paper
  gives no lambda.
- The image's features are fixed, as in the paper's experiments; several regions (a grid) are
  averaged without ``--attention``.

The released TF-mRNN code is another network: it has a GRU of 2048, no word input to the multimodal
layer, and a tied output layer.
"""

from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model
from torch import Tensor, nn

from fairseq_mm.compat.options import option
from fairseq_mm.models._bases import (
    BatchFirstEncoder,
    FeatureDecoder,
    FeatureScaling,
    ImageModel,
    check_has_regions,
    check_regions,
    feature_scaling_option,
    masked_mean,
    scale_vectors,
)
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import Provenance
from fairseq_mm.modules.additive_attention import CoverageAttention
from fairseq_mm.modules.recurrent_steps import ACTIVATIONS, simple_recurrence

WORD_INPUTS = ("second", "first", "none")
IMAGE_INPUTS = ("multimodal", "recurrent", "both", "both_shared", "none")
RECURRENT_INPUTS = ("sum", "concatenation")
ATTENTIONS = ("none", "soft")
# created at run time, so Any for type checkers
WordInput: Any = ChoiceEnum(WORD_INPUTS)
ImageInput: Any = ChoiceEnum(IMAGE_INPUTS)
RecurrentInput: Any = ChoiceEnum(RECURRENT_INPUTS)
Attention: Any = ChoiceEnum(ATTENTIONS)
RecurrentActivation: Any = ChoiceEnum(tuple(ACTIVATIONS))


@dataclass
class MRnnConfig(FairseqDataclass):
    """Options of m-RNN. The default sizes follow Mao et al. 2015, section 3.2 and Figure 2 (b).

    Dropout was tuned on the development split of Flickr8k.
    """

    embedding_dim: int = option(128, "Dimension of embedding layer I.")
    hidden_dim: int = option(256, "Dimension of embedding layer II and of the recurrent layer.")
    multimodal_dim: int = option(512, "Dimension of the multimodal layer.")
    one_layer_embedding: bool = option(
        False, "Use one embedding layer of dimension --hidden-dim (Mao et al. 2015, Table 8)."
    )
    word_input: WordInput = option(
        "second", "Embedding layer whose output enters the multimodal layer, or none."
    )
    image_input: ImageInput = option(
        "multimodal", "Layers that read the image; both_shared is both with shared weights."
    )
    dropout: float = option(0.5, "Dropout probability of the multimodal layer.")
    embedding_dropout: float = option(0.3, "Dropout probability of embedding layer I.")
    recurrent_dropout: float = option(
        0.3, "Dropout probability of the recurrent layer's output to the multimodal layer."
    )
    feature_scaling: FeatureScaling = feature_scaling_option()
    feature_dropout: float = option(0.5, "Dropout probability of the feature vector.")
    recurrent_scale: float = option(0.5, "Initial recurrent matrix, as a multiple of the identity.")
    recurrent_activation: RecurrentActivation = option(
        "relu",
        "Function of the recurrent layer: ReLU (equation 2), or sigmoid or 1.7159 tanh(2/3 x) "
        "(footnote 3).",
    )
    recurrent_input: RecurrentInput = option(
        "sum",
        "What is added to the product of recurrent matrix and state: the word's vector (sum, "
        "equation 2), or the vector multiplied by a matrix (concatenation, equation 1).",
    )
    attention: Attention = option(
        "none",
        "What the multimodal layer reads of the image's regions: their mean, or with soft a mean "
        "whose weights depend on the words so far (Xu et al. 2015).",
        needs="image_input=multimodal",
    )


def _attends(cfg: MRnnConfig) -> bool:
    # a checkpoint that is older than the option has a config without it
    return str(getattr(cfg, "attention", "none")) == "soft"


class MRnnEncoder(BatchFirstEncoder):
    """Encoder that averages the features of an image's regions and scales the mean.

    Args:
        scaling: Name of the scaling, see :func:`scale_vectors`.
        keeps_regions: True to return the scaled features of each region, without averaging.
        reads_grid: True to refuse images of one region if ``keeps_regions`` is True.
    """

    def __init__(
        self,
        dropout: float,
        scaling: str,
        *,
        keeps_regions: bool = False,
        reads_grid: Optional[bool] = None,
    ) -> None:
        super().__init__()
        self.keeps_regions = keeps_regions
        self.reads_grid = reads_grid
        self.scaling = scaling
        self.dropout = nn.Dropout(dropout)
        # generation casts the model but not the batch: this buffer has the dtype of the model
        self.register_buffer("precision", torch.zeros(()), persistent=False)

    def forward(self, features: Tensor, padding_mask: Tensor) -> dict[str, list[Tensor]]:
        """Average and scale features [B, N, D] of N regions per image.

        ``padding_mask`` is [B, N] bool, True at padding. Returns a dict with ``image``, a list of
        one tensor [B, D]; with ``keeps_regions``, the tensor is [B, N, D], and the dict also has
        ``padding_mask``.
        """
        if self.keeps_regions:
            check_regions(features, self.reads_grid)
            regions = scale_vectors(features.float(), self.scaling)
            # one mask for all regions of an image, so that their weighted mean lacks a feature
            # as the mean would
            mask = self.dropout(regions.new_ones(len(regions), 1, regions.size(2)))
            regions = (regions * mask).to(self.precision.dtype)
            return {"image": [regions], "padding_mask": [padding_mask]}
        image = scale_vectors(masked_mean(features, padding_mask), self.scaling)  # [B, D]
        return {"image": [self.dropout(image).to(self.precision.dtype)]}


class MRnnDecoder(FeatureDecoder):
    """Decoder that predicts a word from the image and the words before.

    D, H and M are the dimensions of the features, of the recurrent and of the multimodal layer.

    Attributes:
        word_table: [V, H + M] summands of the recurrent and the multimodal layer that depend only
            on the word, see :meth:`make_generation_fast_`; None if they are not precomputed.
    """

    word_table: Optional[Tensor]
    state_key = "m_rnn"

    def __init__(self, dictionary: Any, feature_dim: int, cfg: MRnnConfig) -> None:
        super().__init__(dictionary)
        hidden_dim, multimodal_dim = cfg.hidden_dim, cfg.multimodal_dim
        word_input, image_input = str(cfg.word_input), str(cfg.image_input)
        has_one_layer = cfg.one_layer_embedding
        first_dim = hidden_dim if has_one_layer else cfg.embedding_dim
        self.embedding = nn.Embedding(len(dictionary), first_dim, padding_idx=dictionary.pad())
        self.word_proj = None if has_one_layer else nn.Linear(first_dim, hidden_dim)
        # A recurrence of ReLUs explodes easily, hence a multiple of the identity; the paper gives
        # no initial values.
        self.recurrent_weight = nn.Parameter(torch.eye(hidden_dim) * cfg.recurrent_scale)
        self.recurrent_activation = str(cfg.recurrent_activation)
        self.word_to_recurrent = None
        if str(cfg.recurrent_input) == "concatenation":
            self.word_to_recurrent = nn.Linear(hidden_dim, hidden_dim, bias=False)
        self.word_input = word_input
        self.word_to_multimodal = None
        if word_input != "none":
            width = first_dim if word_input == "first" else hidden_dim
            self.word_to_multimodal = nn.Linear(width, multimodal_dim, bias=False)
        self.recurrent_to_multimodal = nn.Linear(hidden_dim, multimodal_dim)
        self.image_to_multimodal = None
        if image_input in ("multimodal", "both", "both_shared"):
            self.image_to_multimodal = nn.Linear(feature_dim, multimodal_dim, bias=False)
        self.image_to_word = None
        if image_input in ("recurrent", "both"):
            self.image_to_word = nn.Linear(feature_dim, hidden_dim, bias=False)
        self.region_attention = None
        if _attends(cfg):
            self.region_attention = CoverageAttention(hidden_dim, feature_dim, hidden_dim)
        # V_I^(1) has 256 rows and V_I^(2) 512, so the shared weights are the first rows of V_I^(2).
        self.shares_image_weight = image_input == "both_shared"
        self.output_proj = nn.Linear(multimodal_dim, len(dictionary))
        self.dropout = nn.Dropout(cfg.dropout)
        self.embedding_dropout = nn.Dropout(cfg.embedding_dropout)
        self.recurrent_dropout = nn.Dropout(cfg.recurrent_dropout)
        self.hidden_dim = hidden_dim
        # not saved, because it is computed from the weights
        self.register_buffer("word_table", None, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Word vectors have a length of about 1; the other matrices are initialised by Glorot and
        # Bengio 2010.
        nn.init.normal_(self.embedding.weight, std=self.embedding.embedding_dim**-0.5)
        with torch.no_grad():
            self.embedding.weight[self.embedding.padding_idx].zero_()
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def image_terms(self, image: Tensor) -> tuple[Optional[Tensor], Optional[Tensor]]:
        """Project image vectors [B, D] once for all decoding steps.

        Returns the vectors that the image adds to the input of the multimodal layer [B, M], and to
        the output of embedding layer II [B, H]; None for a layer that the image does not enter.
        """
        to_multimodal = self.image_to_multimodal(image) if self.image_to_multimodal else None
        if self.shares_image_weight and to_multimodal is not None:
            return to_multimodal, to_multimodal[:, : self.hidden_dim]
        return to_multimodal, self.image_to_word(image) if self.image_to_word else None

    def language_terms(
        self, tokens: Tensor, to_word: Optional[Tensor], initial: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the words' contribution to the multimodal layer, and the recurrent states.

        Args:
            tokens: [B, T] words.
            to_word: [B, H] vector that the image adds to embedding layer II; None for no image.
            initial: [B, H] recurrent state before the first word.

        Returns:
            Input V_w w(t) + V_r r(t) + bias of the multimodal layer [B, T, M] without the image,
                and recurrent states r(t) [B, T, H].
        """
        first = self.embedding_dropout(self.embedding(tokens))
        second = self.word_proj(first) if self.word_proj is not None else first  # [B, T, H]
        if to_word is not None:
            second = second + to_word.unsqueeze(1)
        states = simple_recurrence(
            self.recurrent_input(second), self.recurrent_weight, initial, self.recurrent_activation
        )
        terms = self.recurrent_to_multimodal(self.recurrent_dropout(states))  # [B, T, M]
        if self.word_to_multimodal is not None:
            terms = terms + self.word_to_multimodal(first if self.word_input == "first" else second)
        return terms, states

    def recurrent_input(self, word: Tensor) -> Tensor:
        return word if self.word_to_recurrent is None else self.word_to_recurrent(word)

    def make_generation_fast_(self, retain_dropout: bool = False, **unused: Any) -> None:
        """Precompute a table [V, H + M] of the terms that depend only on the current word.

        There is no table with ``retain_dropout``, or if the image enters embedding layer II.
        """
        if self.image_to_word is not None or self.shares_image_weight or retain_dropout:
            return
        with torch.no_grad():
            first = self.embedding.weight
            second = self.word_proj(first) if self.word_proj is not None else first
            from_word = self.recurrent_to_multimodal.bias.expand(len(first), -1)
            if self.word_to_multimodal is not None:
                word = first if self.word_input == "first" else second
                from_word = from_word + self.word_to_multimodal(word)
            self.word_table = torch.cat([self.recurrent_input(second), from_word], dim=1)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]],
        incremental_state: Optional[dict] = None,
    ) -> tuple[Tensor, Optional[dict[str, Optional[Tensor]]]]:
        """Compute features [B, T, M], or [B, 1, M] when decoding incrementally: m(t) of the
        module's docstring.

        The second result is None. With attention it is a dict, whose entry ``image_attention`` has
        the weights [B, T, N] float32 of N regions.
        """
        image = encoder_out["image"][0]
        saved: Any = None
        if incremental_state is not None:
            saved = self.get_incremental_state(incremental_state, self.state_key)
            prev_output_tokens = prev_output_tokens[:, -1:]
        if saved is None:
            # The terms of the image are the same at all decoding steps.
            if self.region_attention is None:
                to_multimodal, to_word = self.image_terms(image)
                saved = {"to_multimodal": to_multimodal, "to_word": to_word}
            else:
                # V_I is linear, so it may precede the weighted mean
                assert self.image_to_multimodal is not None
                saved = {
                    "to_multimodal": self.image_to_multimodal(image),  # V_I x_i, [B, N, M]
                    "to_word": None,
                    "keys": self.region_attention.project(image),  # K x_i + b
                }
            saved["state"] = image.new_zeros(image.size(0), self.hidden_dim)
        initial, to_multimodal, to_word = (
            saved[name] for name in ("state", "to_multimodal", "to_word")
        )
        if incremental_state is not None and self.word_table is not None:
            # the results of language_terms for one word per row, by the table of the words
            to_recurrent, from_word = self.word_table[prev_output_tokens[:, 0]].split(
                [self.hidden_dim, self.recurrent_to_multimodal.out_features], dim=1
            )
            state = torch.addmm(to_recurrent, initial, self.recurrent_weight.t())
            state = ACTIVATIONS[self.recurrent_activation].apply_(state)
            terms = torch.addmm(from_word, state, self.recurrent_to_multimodal.weight.t())
            terms, states = terms.unsqueeze(1), state.unsqueeze(1)
        else:
            terms, states = self.language_terms(prev_output_tokens, to_word, initial)
        if incremental_state is not None:
            newest = {**saved, "state": states[:, -1]}
            self.set_incremental_state(incremental_state, self.state_key, newest)
        extra = None
        if self.region_attention is not None:
            weights, _ = self.region_attention(
                states, saved["keys"], encoder_out["padding_mask"][0]
            )
            terms = terms + torch.matmul(weights.to(terms.dtype), to_multimodal)
            extra = {"attn": None, "image_attention": weights}
        elif to_multimodal is not None:
            terms = terms + to_multimodal.unsqueeze(1)
        # equation 4
        return self.dropout(1.7159 * torch.tanh(terms * (2 / 3))), extra


@register_model("m_rnn", dataclass=MRnnConfig)
class MRnnModel(ImageModel):
    """Model that writes captions of images (m-RNN)."""

    @classmethod
    def build_model(cls, cfg: MRnnConfig, task: Any) -> "MRnnModel":
        attends = _attends(cfg)
        if attends:
            check_has_regions(task, "--attention soft")
        encoder = MRnnEncoder(
            cfg.feature_dropout,
            str(cfg.feature_scaling),
            keeps_regions=attends,
            # Imported features do not record a grid: images may have different numbers of regions,
            # and all images of a batch a single one.
            reads_grid=True if "grid" in getattr(task, "feature_attributes", {}) else None,
        )
        decoder = MRnnDecoder(task.target_dictionary, task.feature_dim, cfg)
        return cls(encoder, decoder, Provenance.of_task(task))


register_presets(
    "m_rnn",
    {
        "m_rnn_tiny": {"embedding_dim": 8, "hidden_dim": 12, "multimodal_dim": 20},
        "m_rnn_base": {"image_input": "none"},
        "m_rnn_no_emb_input": {"word_input": "none"},
        "m_rnn_one_layer_emb": {"one_layer_embedding": True},
        "m_rnn_emb_one_input": {"word_input": "first"},
        "m_rnn_vis_in_rnn": {"image_input": "recurrent"},
        "m_rnn_vis_in_rnn_both": {"image_input": "both"},
        "m_rnn_vis_in_rnn_both_shared": {"image_input": "both_shared"},
    },
)
