"""Pointer-generator (``--arch pointer_generator``, task ``video_summarization``).

See, Liu, Manning. Get To The Point: Summarization with Pointer-Generator Networks. ACL 2017.
https://arxiv.org/abs/1704.04368. It is a baseline of Yu et al. 2021
(https://arxiv.org/abs/2109.02401) that reads only the transcript. With x_t the embedding of the
word before step t, h the states of the source's words w_i, s the decoder's state, and a attention:

    h       = bidirectional LSTM of the source
    s_t     = LSTM(s_(t-1), x_t)
    a_t     = softmax(v . tanh(W_h h + W_s s_t + b))          (eq. 1, 2; with coverage 11)
    h*_t    = sum_i a_ti h_i                                  (eq. 3)
    P_vocab = softmax(V' (V [s_t; h*_t] + b) + b')            (eq. 4)
    p_gen   = sigmoid(w_h h*_t + w_s s_t + w_x x_t + b)       (eq. 8)
    P(w)    = p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} a_ti    (eq. 9)

``--coverage`` adds the term w_c c_t to the attention (eq. 11), where the coverage c_t is the sum of
the attention weights before step t; the criterion ``coverage_cross_entropy`` has the loss of the
coverage (eq. 12, 13).

Words outside the dictionary are the symbols ``<unk-0>``, ``<unk-1>``, ... of a joined dictionary
(``fairseq-mm prepare videos --indexed-oov``). As in the paper, these symbols have no probability
P_vocab and can only be copied. They share the embedding of ``<unk>``, because a symbol denotes
another word in each transcript. If the dictionary has no such symbols, the model copies only words
of the dictionary.

Differs from the paper / left open:
- s_0 is computed from the last states of both directions by a linear layer with ReLU, as in the
  released code.
- The source's closing ``</s>`` is attended to and copied like a word: it can end a summary.
- The released code also feeds h*_(t-1) into the decoder's LSTM, which the paper does not mention.
  This model does not, so that all steps of a training example are computed at once.
- Dropout is an option; the paper does not use it.
"""

from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model
from torch import Tensor, nn

from fairseq_mm.compat.options import option
from fairseq_mm.models._bases import (
    BatchFirstEncoder,
    FeatureDecoder,
    TextModel,
    check_one_dictionary,
)
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import Provenance, list_words
from fairseq_mm.modules.additive_attention import CoverageAttention
from fairseq_mm.modules.packed_rnn import SkippingLSTM
from fairseq_mm.modules.recurrent_steps import step_lstm

# Log of the probability, 1e-10, of a word that can only be copied but is not in the source. It is
# not 0 because label smoothing and float16 cannot handle the logarithm of 0.
_LEAST_SHARE_LOG = -23.0


def first_positions(tokens: Tensor) -> Tensor:
    """Return the position at which each token of a source first occurs: [B, S] -> [B, S]."""
    # argmax returns the first maximum; it does not support bool
    return (tokens.unsqueeze(2) == tokens.unsqueeze(1)).char().argmax(dim=2)


def mixture_logits(
    logits: Tensor,
    write_score: Tensor,
    attention: Tensor,
    tokens: Tensor,
    places: Tensor,
    only_copied: Tensor,
) -> Tensor:
    """Compute logits whose softmax is equation 9 of See et al. 2017::

        P(w) = p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} a_i

    The returned logits differ from ``logits`` only at words that occur in the source, so no second
    distribution over the vocabulary is built. Let l_w be the entries of ``logits``, Z the sum of
    their exponentials, and z the logit of p_gen. The returned logit of a word w of the source is
    ``log(e^l_w + Z e^-z sum_{i: w_i = w} a_i)``.

    Args:
        logits: [B, T, V] logits l_w of generating each word of the vocabulary.
        write_score: [B, T] logits z, whose sigmoid is p_gen.
        attention: [B, T, S] float32 weights a_i of the source's words, 0 at padding.
        tokens: [B, S] words of the source.
        places: [B, S] first position of each word in its row, see :func:`first_positions`.
        only_copied: [N] indices of the words that can be copied but not generated: P_vocab is 0 for
            them.
    """
    B, T, _ = logits.shape
    if len(only_copied):
        logits = logits.index_fill(2, only_copied, float("-inf"))
    # After -inf, not before: a word that can only be copied has no share of the sum of P_vocab.
    log_total = logits.float().logsumexp(dim=2, keepdim=True)  # [B, T, 1]
    if len(only_copied):
        # Only now: with -inf, the gain of a copied word would be infinity minus infinity.
        least = (log_total + _LEAST_SHARE_LOG).to(logits.dtype)
        logits = logits.index_copy(2, only_copied, least.expand(B, T, len(only_copied)))
    index = tokens.unsqueeze(1).expand(B, T, -1)  # [B, T, S]
    copied = attention.new_zeros(attention.shape)
    copied = copied.scatter_add(2, places.unsqueeze(1).expand(B, T, -1), attention)
    # The gradient of log(0) is infinite, and the mask below would turn it into NaN.
    log_copied = copied.clamp(min=1e-30).log() + log_total - write_score.float().unsqueeze(2)
    # what the sum of two exponentials adds to the first one's logarithm
    gain = F.softplus(log_copied - logits.gather(2, index).float())
    # a word that stands several times gains once; padding, whose weights are 0, gains nothing
    gain = gain.masked_fill(copied == 0, 0.0)
    return logits.scatter_add(2, index, gain.to(logits.dtype))


@dataclass
class PointerGeneratorConfig(FairseqDataclass):
    """Options of the pointer-generator. The default sizes follow See et al. 2017, section 5."""

    embedding_dim: int = option(128, "Dimension of token embeddings of source and summary.")
    hidden_dim: int = option(
        256, "Hidden size of the decoder and of each direction of the encoder."
    )
    attention_dim: int = option(512, "Hidden size of the attention.")
    dropout: float = option(
        0.0, "Dropout probability of embeddings, source states and the output layer's input."
    )
    coverage: bool = option(
        False, "Let the attention depend on the sum of its earlier weights (coverage)."
    )


class WordEmbedding(nn.Module):
    """Word embedding, in which ``<unk-0>``, ``<unk-1>``, ... share the vector of ``<unk>``."""

    def __init__(self, dictionary: Any, embedding_dim: int) -> None:
        super().__init__()
        self.rows: Tensor
        self.table = nn.Embedding(len(dictionary), embedding_dim, dictionary.pad())
        nn.init.normal_(self.table.weight, std=embedding_dim**-0.5)
        nn.init.zeros_(self.table.weight[dictionary.pad()])
        rows = torch.arange(len(dictionary))
        # A symbol such as <unk-0> denotes another word in each transcript, so a vector of its own
        # would mean nothing.
        rows[find_indexed_oov(dictionary)] = dictionary.unk()
        self.register_buffer("rows", rows, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(self.rows[tokens])


def find_indexed_oov(dictionary: Any) -> list[int]:
    """Return the indices of ``<unk-0>``, ``<unk-1>``, ... in a dictionary."""
    indices: list[int] = []
    while f"<unk-{len(indices)}>" in dictionary:
        indices.append(dictionary.index(f"<unk-{len(indices)}>"))
    return indices


class PointerGeneratorEncoder(BatchFirstEncoder):
    """Bidirectional LSTM over the source, with ``hidden_dim`` (H) units in each direction."""

    def __init__(
        self, dictionary: Any, embedding: WordEmbedding, hidden_dim: int, dropout: float
    ) -> None:
        super().__init__(dictionary)
        self.embedding = embedding
        self.lstm = SkippingLSTM(embedding.table.embedding_dim, hidden_dim, 1, dropout=0.0)
        self.state_proj = nn.Linear(2 * hidden_dim, hidden_dim)
        self.cell_proj = nn.Linear(2 * hidden_dim, hidden_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None, **unused: Any
    ) -> dict[str, list[Tensor]]:
        """Encode sources [B, S], padded on either side, with at least one word per row.

        Returns a dict of lists of one tensor: ``states`` [B, S, 2H] of the words; ``is_padding``
        [B, S] bool; ``first_state`` and ``first_cell`` [B, H], the decoder's initial state;
        ``tokens`` [B, S], the sources; and ``places`` [B, S], see :func:`first_positions`.
        """
        is_padding = src_tokens.eq(self.dictionary.pad())
        embedded = self.dropout(self.embedding(src_tokens))
        states, last = self.lstm.with_last_states(embedded, is_padding)
        state, cell = (x.transpose(0, 1).flatten(1) for x in last)  # [B, 2H]
        return {
            "states": [self.dropout(states)],
            "is_padding": [is_padding],
            "first_state": [self.state_proj(state).relu()],
            "first_cell": [self.cell_proj(cell).relu()],
            "tokens": [src_tokens],
            "places": [first_positions(src_tokens)],
        }

    def max_positions(self) -> int:
        return 1_000_000  # no positions limit the length of a source


class PointerGeneratorDecoder(FeatureDecoder):
    """Decoder that generates words from the vocabulary or copies words of the source."""

    state_key = "pointer_generator"

    def __init__(
        self, dictionary: Any, embedding: WordEmbedding, cfg: PointerGeneratorConfig
    ) -> None:
        super().__init__(dictionary)
        hidden_dim = cfg.hidden_dim
        embedding_dim = embedding.table.embedding_dim
        self.embedding = embedding
        self.lstm = nn.LSTM(embedding_dim, hidden_dim, batch_first=True)
        self.attention = CoverageAttention(
            hidden_dim, 2 * hidden_dim, cfg.attention_dim, has_coverage=cfg.coverage
        )
        self.write_proj = nn.Linear(2 * hidden_dim + hidden_dim + embedding_dim, 1)
        self.hidden_proj = nn.Linear(3 * hidden_dim, hidden_dim)
        self.output_proj = nn.Linear(hidden_dim, len(dictionary))
        self.dropout = nn.Dropout(cfg.dropout)
        indices = torch.tensor(find_indexed_oov(dictionary), dtype=torch.long)
        self.register_buffer("indexed_oov", indices, persistent=False)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]],
        incremental_state: Optional[dict] = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute features [B, T, H], or [B, 1, H] when decoding incrementally: ``V [s; h*] + b``
        of eq. 4.

        The second result is a dict with ``attn``, a list of one tensor, the attention weights [B,
        T, S]; ``write_score`` [B, T], whose sigmoid is p_gen (equation 8); and, if the attention
        has coverage, ``coverage_loss`` [B, T] (equation 12).
        """
        source, is_padding = encoder_out["states"][0], encoder_out["is_padding"][0]
        state, cell = encoder_out["first_state"][0], encoder_out["first_cell"][0]
        saved, coverage = None, None
        if incremental_state is not None:
            saved = self.get_incremental_state(incremental_state, self.state_key)
            prev_output_tokens = prev_output_tokens[:, -1:]
        if saved is not None:
            state, cell, coverage = saved["state"], saved["cell"], saved.get("coverage")
        keys = self.attention.project(source) if saved is None else saved["keys"]
        embedded = self.dropout(self.embedding(prev_output_tokens))  # [B, T, E]
        if embedded.size(1) == 1 and embedded.device.type == "cpu":
            # nn.LSTM lays out its weights anew at each call.
            state, cell = step_lstm(embedded[:, 0], state, cell, *self.lstm.all_weights[0])
            states = state.unsqueeze(1)
        else:
            states, last = self.lstm(embedded, (state.unsqueeze(0), cell.unsqueeze(0)))
            state, cell = (x[0] for x in last)
        weights, coverages = self.attention(states, keys, is_padding, coverage)
        context = torch.bmm(weights.to(source.dtype), source)  # [B, T, 2H]
        write_score = self.write_proj(torch.cat([context, states, embedded], dim=2)).squeeze(2)
        features = self.hidden_proj(self.dropout(torch.cat([states, context], dim=2)))
        extra: dict[str, Any] = {"attn": [weights], "write_score": write_score}
        if coverages is not None:
            # equation 12: weights of a step with the coverage before it
            extra["coverage_loss"] = torch.minimum(weights, coverages[:, :-1]).sum(dim=2)
        if incremental_state is not None:
            saved = {"state": state, "cell": cell, "keys": keys}
            if coverages is not None:
                saved["coverage"] = coverages[:, -1]
            self.set_incremental_state(incremental_state, self.state_key, saved)
        return features, extra

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any = None,
        incremental_state: Optional[dict] = None,
        features_only: bool = False,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute logits [B, T, V], whose softmax is equation 9 of See et al. 2017.

        See :meth:`extract_features` for the second result.
        """
        features, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        if features_only:
            return features, extra
        # Logits and not probabilities, because fairseq applies a softmax of its own; this also lets
        # every criterion train the model.
        logits = mixture_logits(
            self.output_layer(features),
            extra["write_score"],
            extra["attn"][0],
            encoder_out["tokens"][0],
            encoder_out["places"][0],
            self.indexed_oov,
        )
        return logits, extra


@register_model("pointer_generator", dataclass=PointerGeneratorConfig)
class PointerGeneratorModel(TextModel):
    """Model that summarises transcripts and can copy their words (pointer-generator)."""

    @classmethod
    def build_model(cls, cfg: PointerGeneratorConfig, task: Any) -> "PointerGeneratorModel":
        dictionary = task.target_dictionary
        check_one_dictionary(task)
        embedding = WordEmbedding(dictionary, cfg.embedding_dim)
        encoder = PointerGeneratorEncoder(dictionary, embedding, cfg.hidden_dim, cfg.dropout)
        decoder = PointerGeneratorDecoder(dictionary, embedding, cfg)
        words = list_words(dictionary)
        subwords = getattr(task, "subwords_state", None)
        # Without features, even if the data folder has them: this model does not read them.
        return cls(encoder, decoder, Provenance(words, {}, 0, words, subwords=subwords))

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> None:
        super().upgrade_state_dict_named(state_dict, name)
        weight = self.decoder.attention.coverage_weight
        if weight is not None:
            prefix = f"{name}." if name else ""
            # Section 5: coverage is added at the end of the training. w_c starts with zeros, so
            # that the model's output does not change at first.
            state_dict.setdefault(f"{prefix}decoder.attention.coverage_weight", weight.detach())


TINY = {"embedding_dim": 8, "hidden_dim": 6, "attention_dim": 10}
register_presets("pointer_generator", {"pointer_generator_tiny": TINY})
