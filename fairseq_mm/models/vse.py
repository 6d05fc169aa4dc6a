"""VSE: embeddings of images and sentences in one space (``--arch vse_lstm``, ``vse_gru``,
``vse_bow``; task ``multimodal_captioning``, criterion ``pairwise_ranking``).

Kiros, Salakhutdinov, Zemel. Unifying Visual-Semantic Embeddings with Multimodal Neural Language
Models. 2014. https://arxiv.org/abs/1411.2539. Section 2.2: with q an image's feature vector and
w_1 ... w_N a sentence,

    x = W_I q,   v = m_N of an LSTM over the word vectors of w_1 ... w_N,   s(x, v) = x . v

where m_N is the LSTM's last output, and x and v are scaled to unit length.

``vse_lstm`` is the paper's LSTM (equations 1 to 5) of 300 units; ``vse_gru`` is the encoder of the
released code, a GRU of 1024 units that reads ``</s>`` as well; ``vse_bow`` is the linear encoder of
section 3.2, the sum of the word vectors.

Differs from the paper:
- The image projection has a bias, as in the released codes.
- The features are scaled before they are projected, and there is dropout: see the options.
- Word vectors are learnt, or read with ``--word-vectors``; the paper uses word2vec.
- The features of several regions (a grid) are averaged, unless ``--image-pooling gpo`` is given.
- ``--sentence-pooling`` replaces the last state by the mean, the maximum or the generalized pooling
  (Chen et al. 2021) of all states. With ``vse_bow``, it replaces the sum of the word vectors.

Differs from the released codes: in training, Kiros's code does not scale image embeddings to unit
length (``--image-norm evaluation``), and the code of VSE++ reads a special token before the first
word as well (``--sentence-signs both``).
"""

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import BaseFairseqModel, register_model
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_mm.compat.options import option
from fairseq_mm.errors import UserError
from fairseq_mm.models._bases import (
    FeatureScaling,
    LoadStateDictMixin,
    check_has_regions,
    feature_scaling_option,
    masked_mean,
    scale_vectors,
)
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import MODULE_NAME, Provenance
from fairseq_mm.modules.positions import sinusoids

# Section 4: "weights initialized uniformly from [-0.08, 0.08]".
_INITIAL = 0.08


class PeepholeLSTM(nn.Module):
    """LSTM of one layer whose gates see the cell (Kiros et al. 2014, equations 1 to 5):

        i(t) = sigmoid(x(t) W_xi + m(t-1) W_hi + c(t-1) W_ci + b_i)     (1)
        f(t) = sigmoid(x(t) W_xf + m(t-1) W_hf + c(t-1) W_cf + b_f)     (2)
        c(t) = f(t) c(t-1) + i(t) tanh(x(t) W_xc + m(t-1) W_hc + b_c)   (3)
        o(t) = sigmoid(x(t) W_xo + m(t-1) W_ho + c(t) W_co + b_o)       (4)
        m(t) = o(t) tanh(c(t))                                          (5)

    The initial state m(0) and cell c(0) are zero. With ``diagonal``, W_ci, W_cf and W_co are
    diagonal, as in other descriptions of peepholes.
    """

    def __init__(self, input_dim: int, hidden_dim: int, *, diagonal: bool = False) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.diagonal = diagonal
        # rows in the order i, f, o, c
        self.input_proj = nn.Linear(input_dim, 4 * hidden_dim)
        self.hidden_weight = nn.Parameter(torch.empty(4 * hidden_dim, hidden_dim))
        # in the order i, f, o
        # Kept apart from hidden_weight: i and f see the cell of the step before, o sees the new
        # cell.
        shape = (3 * hidden_dim,) if diagonal else (3 * hidden_dim, hidden_dim)
        self.cell_weight = nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in (self.input_proj.weight, self.hidden_weight, self.cell_weight):
            nn.init.uniform_(parameter, -_INITIAL, _INITIAL)
        nn.init.zeros_(self.input_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the state after each input: [B, T, input_dim] -> [B, T, hidden_dim]."""
        B, H = x.size(0), self.hidden_dim
        inputs = self.input_proj(x).unbind(1)  # T of [B, 4H]
        hidden_weight = self.hidden_weight.t()
        hidden = x.new_zeros(B, H)
        cell = x.new_zeros(B, H)
        peepholes = x.new_zeros(B, 2 * H)  # the cell's terms in the gates i and f
        states = []
        for t, term in enumerate(inputs):
            gates = term if t == 0 else torch.addmm(term, hidden, hidden_weight)
            input_gate, forget_gate = torch.sigmoid(gates[:, : 2 * H] + peepholes).chunk(2, dim=1)
            cell = forget_gate * cell + input_gate * torch.tanh(gates[:, 3 * H :])
            # One product with the new cell serves o of this step and i and f of the next.
            if self.diagonal:
                terms = cell.repeat(1, 3) * self.cell_weight
            else:
                terms = cell @ self.cell_weight.t()
            peepholes, output_peephole = terms.split([2 * H, H], dim=1)
            output_gate = torch.sigmoid(gates[:, 2 * H : 3 * H] + output_peephole)
            hidden = output_gate * torch.tanh(cell)
            states.append(hidden)
        return torch.stack(states, dim=1)


# Chen et al. 2021, section 3.2: size of the encodings of positions, and of the GRU's states.
_POSITION_DIM = _HIDDEN_DIM = 32


def pool_mean(x: Tensor, lengths: Tensor) -> Tensor:
    """Average the vectors of each row: [B, N, D] -> [B, D]. See ``pool_max`` for the arguments."""
    return x.masked_fill(_is_padding(x, lengths), 0.0).sum(1) / lengths.clamp(min=1).unsqueeze(1)


def pool_max(x: Tensor, lengths: Tensor) -> Tensor:
    """Take the largest value of each dimension over the vectors of each row: [B, N, D] -> [B, D].

    ``lengths`` [B] are the numbers of vectors of each row without padding, which is on the right.
    The result is zero for a row without vectors.
    """
    largest = x.masked_fill(_is_padding(x, lengths), float("-inf")).amax(1)
    return largest.masked_fill((lengths == 0).unsqueeze(1), 0.0)


def _is_padding(x: Tensor, lengths: Tensor) -> Tensor:
    positions = torch.arange(x.size(1), device=x.device)
    return (positions >= lengths.unsqueeze(1)).unsqueeze(-1)


class GeneralizedPooling(nn.Module):
    """Weighted mean over the sorted values of each dimension, with trained weights.

    GPO of Chen, Hu, Wu, Jiang, Wang. Learning the Best Pooling Strategy for Visual Semantic
    Embedding. 2021. https://arxiv.org/abs/2011.04305, section 3. For a row of N vectors, dimension
    d of the result is

        v_d = sum_k theta_k max_k(x_1d ... x_Nd),   k = 1 ... N

    where max_k is the k-th largest value. The weights theta sum to 1, and depend on N alone: they
    are the softmax of a linear layer over a bidirectional GRU that reads the sinusoidal encodings
    of the positions 1 ... N. The mean (all weights equal) and the maximum (a weight of 1 for k = 1)
    are special cases.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(_POSITION_DIM, _HIDDEN_DIM, batch_first=True, bidirectional=True)
        # no bias, which the softmax would cancel
        self.score_proj = nn.Linear(2 * _HIDDEN_DIM, 1, bias=False)

    def get_weights(self, shortest: int, longest: int) -> Tensor:
        """Compute the weights theta of rows with ``shortest`` to ``longest`` vectors.

        Row i of the result [longest - shortest + 1, longest] has the weights of rows with
        ``shortest + i`` vectors, followed by zeros.
        """
        dtype, device = self.score_proj.weight.dtype, self.score_proj.weight.device
        encodings = sinusoids(torch.arange(1, longest + 1, device=device), _POSITION_DIM).to(dtype)
        # From the longest to the shortest, the order in which rows are packed. On the CPU, where
        # packing wants the lengths: copying them from a GPU would wait for it.
        counts = torch.arange(longest, shortest - 1, -1)
        rows = encodings.expand(len(counts), -1, -1)
        states, _ = self.gru(pack_padded_sequence(rows, counts, batch_first=True))
        states, _ = pad_packed_sequence(states, batch_first=True)
        scores = self.score_proj(states).squeeze(-1).float().flip(0)
        lengths = torch.arange(shortest, longest + 1, device=device)
        positions = torch.arange(longest, device=device)
        scores = scores.masked_fill(positions >= lengths.unsqueeze(1), float("-inf"))
        return scores.softmax(dim=1)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Pool vectors: [B, N, D] -> [B, D]; see :func:`pool_max` for the arguments."""
        longest = x.size(1)
        # A GPU would have to be waited for to know the shortest row.
        shortest = 1
        if lengths.numel() and not lengths.is_cuda:
            shortest = max(1, int(lengths.min()))
        weights = self.get_weights(shortest, longest)[(lengths - shortest).clamp(min=0)]  # [B, N]
        is_padding = _is_padding(x, lengths)
        # The values of a dimension side by side: sorting them is then much faster than over rows.
        values = x.masked_fill(is_padding, float("-inf")).transpose(1, 2).contiguous()
        values = values.sort(dim=2, descending=True).values
        values = values.masked_fill(is_padding.transpose(1, 2), 0.0)  # [B, D, N]
        return torch.matmul(values, weights.to(x.dtype).unsqueeze(-1)).squeeze(-1)


SENTENCE_ENCODERS = ("lstm", "gru", "bow")
SENTENCE_SIGNS = ("none", "end", "both")
SENTENCE_POOLINGS = ("encoder", "mean", "max", "gpo")
IMAGE_POOLINGS = ("mean", "gpo")
IMAGE_NORMS = ("always", "evaluation", "never")
# created at run time, so Any for type checkers
SentenceEncoderName: Any = ChoiceEnum(SENTENCE_ENCODERS)
SentenceSigns: Any = ChoiceEnum(SENTENCE_SIGNS)
SentencePooling: Any = ChoiceEnum(SENTENCE_POOLINGS)
ImagePooling: Any = ChoiceEnum(IMAGE_POOLINGS)
ImageNorm: Any = ChoiceEnum(IMAGE_NORMS)

# Both released codes sample initial word vectors from U(-0.1, 0.1).
_INITIAL_WORDS = 0.1


@dataclass
class VseConfig(FairseqDataclass):
    """Options of VSE. The default sizes follow Kiros et al. 2014."""

    sentence_encoder: SentenceEncoderName = option(
        "lstm", "Sentence encoder: LSTM with peepholes, GRU, or the sum of word vectors."
    )
    word_dim: int = option(300, "Dimension of word vectors.")
    embed_dim: int = option(300, "Dimension K of the joint space and of the LSTM's or GRU's state.")
    diagonal_peepholes: bool = option(
        False, "Let the peepholes of each unit of the LSTM see only the cell of this unit."
    )
    sentence_signs: SentenceSigns = option(
        "none", "Special tokens that are read: none, </s> (end), or <s> and </s> (both)."
    )
    sentence_pooling: SentencePooling = option(
        "encoder",
        "How the states of an LSTM or GRU, or the word vectors of bow, become one vector: as the "
        "encoder is defined, by the last state or the sum (encoder); by their mean or maximum; or "
        "by generalized pooling (gpo, Chen et al. 2021).",
    )
    image_pooling: ImagePooling = option(
        "mean",
        "How the features of an image's regions become one vector: by their mean, or by "
        "generalized pooling of the projected regions (gpo).",
    )
    word_vectors: Optional[str] = option(
        None,
        "File of initial word vectors: word2vec (text or binary), GloVe or fastText's .vec, "
        "plain or .gz.",
    )
    fixed_words: bool = option(False, "Do not train the word vectors.")
    image_norm: ImageNorm = option(
        "always", "When image embeddings are scaled to unit length; evaluation: not in training."
    )
    feature_scaling: FeatureScaling = feature_scaling_option()
    feature_dropout: float = option(0.0, "Dropout probability of the feature vector.")
    word_dropout: float = option(0.0, "Dropout probability of word vectors.")
    dropout: float = option(0.0, "Dropout probability of the sentence's vector.")


class SentenceEncoder(nn.Module):
    """Encoder that maps the words of a sentence to one vector, whose norm is not scaled to 1."""

    def __init__(self, dictionary: Any, cfg: VseConfig) -> None:
        super().__init__()
        self.kind = kind = str(cfg.sentence_encoder)
        self.signs = str(cfg.sentence_signs)
        # configs of older checkpoints lack the option
        self.pooling = str(getattr(cfg, "sentence_pooling", "encoder"))
        word_dim, embed_dim = cfg.word_dim, cfg.embed_dim
        self.pad, self.end, self.begin = dictionary.pad(), dictionary.eos(), dictionary.bos()
        self.embedding = nn.Embedding(len(dictionary), word_dim, padding_idx=self.pad)
        nn.init.uniform_(self.embedding.weight, -_INITIAL_WORDS, _INITIAL_WORDS)
        with torch.no_grad():
            self.embedding.weight[self.pad].zero_()
        self.recurrence: Optional[nn.Module] = None
        self.sum_proj: Optional[nn.Module] = None
        if kind == "lstm":
            self.recurrence = PeepholeLSTM(word_dim, embed_dim, diagonal=cfg.diagonal_peepholes)
        elif kind == "gru":
            self.recurrence = nn.GRU(word_dim, embed_dim, batch_first=True)
            _reset_gru(self.recurrence)
        elif word_dim != embed_dim:
            self.sum_proj = nn.Linear(word_dim, embed_dim, bias=False)
            nn.init.xavier_uniform_(self.sum_proj.weight)
        self.generalized_pooling: Optional[GeneralizedPooling] = None
        if self.pooling == "gpo":
            self.generalized_pooling = GeneralizedPooling()
        self.word_dropout = nn.Dropout(cfg.word_dropout)
        self.dropout = nn.Dropout(cfg.dropout)

    def with_signs(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Add the special tokens of the option ``sentence_signs`` to right-padded words [B, T].

        A ``</s>`` at the end of the words is removed first. Returns words and special tokens [B,
        R], right-padded, and the number [B] of tokens of each row without padding.
        """
        is_word = (tokens != self.pad) & (tokens != self.end)
        lengths = is_word.sum(dim=1)
        # A column of padding takes less time than waiting for a GPU to say that it is one.
        most = tokens.size(1)
        if lengths.numel() and not tokens.is_cuda:
            most = int(lengths.max())
        # A batch may end its lines with </s> or not, so every </s> is removed before the signs are
        # added.
        read = tokens[:, :most].masked_fill(~is_word[:, :most], self.pad)
        if self.signs != "none":
            read = F.pad(read, (0, 1), value=self.pad)
            read = read.scatter(1, lengths.unsqueeze(1), self.end)
            lengths = lengths + 1
        if self.signs == "both":
            read = F.pad(read, (1, 0), value=self.begin)
            lengths = lengths + 1
        return read, lengths

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode right-padded words [B, T], with or without ``</s>``: [B, embed_dim], zero without
        tokens.
        """
        read, lengths = self.with_signs(tokens)
        if read.size(1) == 0:
            # One column of padding, because recurrent layers refuse an empty sequence.
            read = F.pad(read, (0, 1), value=self.pad)
        words = self.word_dropout(self.embedding(read))  # [B, R, word_dim]
        if self.kind == "bow":
            pooled = self._pool(words, lengths)
            return self.dropout(pooled if self.sum_proj is None else self.sum_proj(pooled))
        assert self.recurrence is not None
        states = self.recurrence(words)
        states = states[0] if self.kind == "gru" else states  # [B, R, K]
        return self.dropout(self._pool(states, lengths))

    def _pool(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Pool right-padded states or word vectors [B, R, D] to [B, D]; zeros without tokens."""
        if self.generalized_pooling is not None:
            return self.generalized_pooling(vectors, lengths)
        if self.pooling != "encoder":
            return (pool_max if self.pooling == "max" else pool_mean)(vectors, lengths)
        if self.kind == "bow":
            # No mask: the vector of padding is zero, and dropout keeps it zero.
            return vectors.sum(dim=1)
        rows = torch.arange(len(vectors), device=vectors.device)
        # The state after the last token; later states have read padding.
        last = vectors[rows, (lengths - 1).clamp(min=0)]
        return last.masked_fill(lengths.unsqueeze(1) == 0, 0.0)


def _reset_gru(gru: nn.GRU) -> None:
    for name, parameter in gru.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
            continue
        # Gate by gate, because PyTorch joins the matrices of the three gates; orthogonal as in the
        # released code.
        for gate in parameter.data.chunk(3):
            init = nn.init.orthogonal_ if name.startswith("weight_hh") else nn.init.xavier_normal_
            init(gate)


@register_model("vse", dataclass=VseConfig)
class VseModel(LoadStateDictMixin, BaseFairseqModel):
    """Model that embeds images and sentences in one space."""

    def __init__(self, sentence_encoder: SentenceEncoder, feature_dim: int, cfg: VseConfig) -> None:
        super().__init__()
        self.sentence_encoder = sentence_encoder
        self.image_proj = nn.Linear(feature_dim, cfg.embed_dim)
        nn.init.xavier_uniform_(self.image_proj.weight)
        nn.init.zeros_(self.image_proj.bias)
        self.embed_dim = cfg.embed_dim
        self.image_norm = str(cfg.image_norm)
        self.feature_scaling = str(cfg.feature_scaling)
        self.feature_dropout = nn.Dropout(cfg.feature_dropout)
        self.region_pooling: Optional[GeneralizedPooling] = None
        # configs of older checkpoints lack the option
        if str(getattr(cfg, "image_pooling", "mean")) == "gpo":
            self.region_pooling = GeneralizedPooling()

    @classmethod
    def build_model(cls, cfg: VseConfig, task: Any) -> "VseModel":
        encoder = SentenceEncoder(task.target_dictionary, cfg)
        if cfg.word_vectors:
            fill_word_vectors(
                encoder.embedding, *task.read_word_vectors(cfg.word_vectors, cfg.word_dim)
            )
        encoder.embedding.weight.requires_grad_(not cfg.fixed_words)
        model = cls(encoder, task.feature_dim, cfg)
        if model.region_pooling is not None:
            check_has_regions(task, "--image-pooling gpo")
        model.add_module(MODULE_NAME, Provenance.of_task(task))
        return model

    def embed_images(self, features: Tensor, padding_mask: Tensor) -> Tensor:
        """Embed images from features [B, N, D] of N regions: [B, embed_dim] float32.

        ``padding_mask`` is [B, N] bool, True at padding. The option ``image_norm`` says when
        embeddings have unit length.
        """
        if self.region_pooling is None:
            features = masked_mean(features, padding_mask)  # [B, D]
        scaled = scale_vectors(features.float(), self.feature_scaling)
        # Generation and retrieval may cast the model, but not the batch.
        scaled = self.feature_dropout(scaled).to(self.image_proj.weight.dtype)
        embedded = self.image_proj(scaled).float()
        if self.region_pooling is not None:
            embedded = self.region_pooling(embedded, (~padding_mask).sum(dim=1))
        if self.image_norm == "always" or (self.image_norm == "evaluation" and not self.training):
            return F.normalize(embedded, dim=-1)
        return embedded

    def embed_sentences(self, tokens: Tensor) -> Tensor:
        """Embed right-padded words [B, T]: [B, embed_dim] float32 of unit length; zeros without
        tokens.
        """
        # float32, because lengths of half-precision vectors are 1 only to the third digit.
        return F.normalize(self.sentence_encoder(tokens).float(), dim=-1)

    def forward(
        self, features: Tensor, padding_mask: Tensor, tokens: Optional[Tensor] = None, **unused: Any
    ) -> tuple[Tensor, Tensor]:
        """Embed the images and the sentences of a batch, [B, embed_dim] each."""
        if tokens is None:
            raise UserError(
                "models that embed images and sentences are trained with --criterion "
                "pairwise_ranking."
            )
        return self.embed_images(features, padding_mask), self.embed_sentences(tokens)


def fill_word_vectors(embedding: nn.Embedding, vectors: np.ndarray, is_found: np.ndarray) -> None:
    """Copy pretrained vectors into an embedding of V words.

    Words without a pretrained vector keep their random vector, scaled to the typical length of the
    pretrained vectors [V, D] float32. ``is_found`` is [V] bool, True at least once.
    """
    has_vector = torch.from_numpy(is_found)
    if embedding.padding_idx is not None:
        has_vector[embedding.padding_idx] = False
    pretrained = torch.from_numpy(vectors)[has_vector]
    # The root mean square of a uniform distribution is its bound divided by the root of 3.
    bound = float(pretrained.pow(2).mean().sqrt()) * 3**0.5
    with torch.no_grad():
        embedding.weight *= bound / _INITIAL_WORDS
        embedding.weight[has_vector] = pretrained


register_presets(
    "vse",
    {
        "vse_tiny": {"word_dim": 6, "embed_dim": 8},
        "vse_lstm": {"sentence_encoder": "lstm"},
        # the size of the released codes
        "vse_gru": {"sentence_encoder": "gru", "embed_dim": 1024, "sentence_signs": "end"},
        "vse_bow": {"sentence_encoder": "bow"},
    },
)
