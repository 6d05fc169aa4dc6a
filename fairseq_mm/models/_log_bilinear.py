"""Encoders and decoders of the log-bilinear language models.

Every model of the family predicts the vector r of the next word from the context, the n-1 words
before it, and changes r according to a condition, such as an image. The logits are dot products of
the changed vector with the vector of each word of the vocabulary. The same word vectors represent
the words of the context:

    r     = sum_(i=1)^(n-1) C^(i) w_i          w_i: vector of the i-th word of the context
    lbl, mlbl_b:     logits = R (r + m) + b    w_i: the word's row of R, m: the condition
    mlbl_f, sc_nlm:  logits = (W^fv)' f + b    w_i = (W^fk)' v_i, v_i: the word's column of W^fv,
                                               f = (W^fk r) * g, g: the condition

C^(i) is a matrix for each position of the context, b the bias of each word, ' the transpose. R is
the table of word vectors. The factored models (``mlbl_f``, ``sc_nlm``) have two matrices instead of
R: W^fv is factors x vocabulary, and W^fk is factors x dimension of r. ``lbl`` has no condition m.

The start token replaces the words before the beginning of a sentence. A prediction depends only on
the last n-1 words, so the decoding state has a fixed size.
"""

from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_mm.compat.options import option
from fairseq_mm.models._bases import (
    BatchFirstEncoder,
    FeatureDecoder,
    FeatureScaling,
    feature_scaling_option,
    masked_mean,
    scale_vectors,
)
from fairseq_mm.modules.linear import ContextWindow, linear


@dataclass
class LogBilinearConfig(FairseqDataclass):
    embedding_dim: int = option(300, "Dimension K of token embeddings.")
    context_length: int = option(5, "Number n-1 of preceding tokens that predict a token.")
    dropout: float = option(0.15, "Dropout probability of the output layer's input.")
    embedding_dropout: float = option(0.0, "Dropout probability of the context's token embeddings.")


@dataclass
class ContentConfig(LogBilinearConfig):
    feature_scaling: FeatureScaling = feature_scaling_option()
    feature_dropout: float = option(0.0, "Dropout probability of the feature vector.")


class ContentProjection(nn.Module):
    """Linear map ``W u`` of the content vector u: the mean of the regions' features, scaled."""

    def __init__(self, feature_dim: int, output_dim: int, cfg: ContentConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(output_dim, feature_dim))
        nn.init.xavier_uniform_(self.weight)
        self.scaling = str(cfg.feature_scaling)
        self.dropout = nn.Dropout(cfg.feature_dropout)

    def forward(self, features: Tensor, padding_mask: Tensor) -> Tensor:
        """Average features [B, N, D] of N regions, scale the mean, and project it: [B, output_dim].

        ``padding_mask`` is [B, N] bool, True at padding, and False at least once in each row.
        """
        content = scale_vectors(masked_mean(features, padding_mask), self.scaling)
        # generation casts the model, but not the batch
        return F.linear(self.dropout(content).to(self.weight.dtype), self.weight)


class ContentEncoder(BatchFirstEncoder):
    """Encoder whose output, the condition that changes predictions, is the projected image
    features.

    The output is a dict with ``condition``, a list of one tensor [B, P, X] for the positions 0 to P
    - 1 of a sentence; later positions use the last condition. Here P is 1. The list is empty if the
    model has no condition.
    """

    def __init__(self, content: ContentProjection) -> None:
        super().__init__()
        self.content = content

    def forward(self, features: Tensor, padding_mask: Tensor) -> dict[str, list[Tensor]]:
        return {"condition": [self.content(features, padding_mask).unsqueeze(1)]}


class LogBilinearDecoder(FeatureDecoder):
    """Base of decoders that predict a word from the n-1 (``cfg.context_length``) words before.

    Attributes:
        table: [V, row_dim] table with a row for each of V words, for input and output: R or the
            transposed W^fv of the module's docstring.
        context: Matrices C^(i), the matrix of the earliest word first.
        folded: [(n-1) * V, row_dim] precomputed terms that each word adds to the prediction at
            each position of the context; None before :meth:`make_generation_fast_`.
    """

    folded: Optional[Tensor]
    state_key = "log_bilinear"

    def __init__(self, dictionary: Any, row_dim: int, cfg: LogBilinearConfig) -> None:
        super().__init__(dictionary)
        self.table = nn.Embedding(len(dictionary), row_dim, padding_idx=dictionary.pad())
        nn.init.normal_(self.table.weight, std=row_dim**-0.5)
        nn.init.zeros_(self.table.weight[dictionary.pad()])
        self.output_bias = nn.Parameter(torch.zeros(len(dictionary)))
        self.context = ContextWindow(cfg.context_length, cfg.embedding_dim, cfg.embedding_dim)
        self.context_length = cfg.context_length
        self.dropout = nn.Dropout(cfg.dropout)
        self.embedding_dropout = nn.Dropout(cfg.embedding_dropout)
        # not saved, because it is computed from the weights
        self.register_buffer("folded", None, persistent=False)

    def read(self, rows: Tensor) -> Tensor:
        """Compute the vectors [..., K] of words from their rows [..., row_dim] of the table."""
        raise NotImplementedError

    def write(self, predicted: Tensor) -> Tensor:
        """Map predicted word vectors [..., K] linearly to the space [..., row_dim] of the table's
        rows.
        """
        raise NotImplementedError

    def apply_condition(self, written: Tensor, condition: Tensor) -> Tensor:
        """Combine predictions [B, T, row_dim] with conditions [B, T or 1, row_dim]."""
        raise NotImplementedError

    def make_generation_fast_(self, retain_dropout: bool = False, **unused: Any) -> None:
        """Precompute the term that each word adds to the prediction, for each context position.

        A prediction is then a sum of precomputed vectors.
        """
        # Dropout would change the vectors of a context from step to step, so that no table could
        # hold them.
        if retain_dropout:
            return
        with torch.no_grad():
            folded = self.write(self.context.project_table(self.read(self.table.weight)))
            self.folded = folded.flatten(0, 1).contiguous()

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]],
        incremental_state: Optional[dict] = None,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        """Compute features [B, T, row_dim], or [B, 1, row_dim] when decoding incrementally, and
        None.
        """
        condition = encoder_out["condition"][0] if encoder_out["condition"] else None
        if incremental_state is None:
            T = prev_output_tokens.size(1)
            words = self._with_start(prev_output_tokens)
            if condition is not None and condition.size(1) > 1:
                places = torch.arange(T, device=words.device).clamp(max=condition.size(1) - 1)
                condition = condition.index_select(1, places)
        else:
            saved = self.get_incremental_state(incremental_state, self.state_key)
            if saved is None:
                # A first step may have several tokens: a prefix that the caller forces.
                words = self._with_start(prev_output_tokens)[:, -self.context_length :]
                B, T = prev_output_tokens.shape
                place = prev_output_tokens.new_full((B,), T - 1)
            else:
                # Only the window is stored, because its size does not grow with the sentence.
                words = torch.cat([saved["words"][:, 1:], prev_output_tokens[:, -1:]], dim=1)
                place = saved["place"] + 1
            state = {"words": words, "place": place}
            self.set_incremental_state(incremental_state, self.state_key, state)
            if condition is not None and condition.size(1) > 1:
                place = place.clamp(max=condition.size(1) - 1)
                condition = condition[torch.arange(len(place), device=place.device), place]
                condition = condition.unsqueeze(1)
        if incremental_state is not None and self.folded is not None:
            # One lookup that also sums, instead of n-1 products of matrices per step.
            places = torch.arange(self.context_length, device=words.device)
            rows = words + places * len(self.dictionary)  # [B, n-1]
            written = F.embedding_bag(rows, self.folded, mode="sum").unsqueeze(1)
        else:
            embedded = self.embedding_dropout(self.read(self.table(words)))  # [B, T + n-2, K]
            written = self.write(self.context(embedded))
        features = written if condition is None else self.apply_condition(written, condition)
        return self.dropout(features), None

    def _with_start(self, tokens: Tensor) -> Tensor:
        """Prepend n-2 start tokens, so that each word [B, T] ends a context of n-1 words."""
        # The first token is the start token, which replaces all words before the sentence.
        return torch.cat([tokens[:, :1].expand(-1, self.context_length - 1), tokens], dim=1)

    def output_layer(self, features: Tensor) -> Tensor:
        return F.linear(features, self.table.weight, self.output_bias)


class AdditiveDecoder(LogBilinearDecoder):
    """Decoder that adds the condition m to the predicted vector r: ``logits = R (r + m) + b``.

    Kiros et al. 2014, arXiv:1411.2539, equations 7 and 8.
    """

    def __init__(self, dictionary: Any, cfg: LogBilinearConfig) -> None:
        super().__init__(dictionary, cfg.embedding_dim, cfg)

    def read(self, rows: Tensor) -> Tensor:
        return rows

    def write(self, predicted: Tensor) -> Tensor:
        return predicted

    def apply_condition(self, written: Tensor, condition: Tensor) -> Tensor:
        return written + condition


class FactoredDecoder(LogBilinearDecoder):
    """Decoder that multiplies F factors of the predicted vector r by the condition g.

    ``logits = (W^fv)' ((W^fk r) * g) + b`` (Kiros et al. 2014, arXiv:1411.2539, equations 9 and
    10). ``factor_weight`` is W^fk, [F, K].
    """

    def __init__(self, dictionary: Any, cfg: Any) -> None:
        super().__init__(dictionary, cfg.num_factors, cfg)
        self.factor_weight = nn.Parameter(torch.empty(cfg.num_factors, cfg.embedding_dim))
        nn.init.xavier_uniform_(self.factor_weight)

    def read(self, rows: Tensor) -> Tensor:
        # The transpose of W^fk and no matrix of its own: equation 10 reads words with the same
        # factors that write them.
        return linear(rows, self.factor_weight.t())

    def write(self, predicted: Tensor) -> Tensor:
        return linear(predicted, self.factor_weight)

    def apply_condition(self, written: Tensor, condition: Tensor) -> Tensor:
        return written * condition
