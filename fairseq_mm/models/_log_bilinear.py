"""Parts of the log-bilinear language models: context of words, condition, tied output layer.

Every model of the family predicts a vector from the n-1 words before, lets a condition act on it,
and compares the result with a vector of each word of the vocabulary, the same that the words of the
context are read by:

    r     = sum_(i=1)^(n-1) C^(i) w_i          w_i the vector of the i-th word of the context
    lbl, mlbl_b:     logits = R (r + m) + b    w_i = R's row of the word, m the condition
    mlbl_f, sc_nlm:  logits = (W^fv)' f + b    w_i = (W^fk)' W^fv(:, i), f = (W^fk r) * g,
                                               g the condition

Words before the beginning of a sentence are the start token. Nothing depends on a word earlier than
n-1 places before, so that the state of decoding has a fixed size.
"""

from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel
from torch import Tensor, nn

from fairseq_mm.models._bases import BatchFirstEncoder, FeatureDecoder, LoadStateDictMixin
from fairseq_mm.models._options import option
from fairseq_mm.models._pooled_features import SCALINGS, masked_mean, scale_vectors
from fairseq_mm.models._provenance import MODULE_NAME, Provenance
from fairseq_mm.modules.linear import ContextWindow, linear

# a type that is made at run time: Any to a type checker
FeatureScaling: Any = ChoiceEnum(SCALINGS)


@dataclass
class LogBilinearConfig(FairseqDataclass):
    embedding_dim: int = option(300, "Dimension K of token embeddings.")
    context_length: int = option(5, "Number n-1 of preceding tokens that predict a token.")
    dropout: float = option(0.15, "Dropout probability of the output layer's input.")
    embedding_dropout: float = option(0.0, "Dropout probability of the context's token embeddings.")


@dataclass
class ContentConfig(LogBilinearConfig):
    feature_scaling: FeatureScaling = option(
        "scale",
        "Scaling of the feature vector: to a mean square of one (scale), the same of its "
        "centred signed square roots (root), to unit length (unit), or none.",
    )
    feature_dropout: float = option(0.0, "Dropout probability of the feature vector.")


class ConditionEncoder(BatchFirstEncoder):
    """Base of encoders that precompute conditions of a sentence; a subclass computes the condition
    of each position.

    ``condition`` is a list with one tensor [B, P, X] for the positions 0 to P-1 of a sentence;
    later positions use the last one. The list is empty if there is no condition.
    """

    def __init__(self) -> None:
        super().__init__(dictionary=None)


class ContentProjection(nn.Module):
    """Linear map ``W u`` of the content vector u.

    Args:
        feature_dim: D, dimension of u.
        output_dim: X.
        scaling: Scaling of u, see :func:`fairseq_mm.models._pooled_features.scale_vectors`.
        dropout: Dropout of u.
    """

    def __init__(self, feature_dim: int, output_dim: int, *, scaling: str, dropout: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(output_dim, feature_dim))
        nn.init.xavier_uniform_(self.weight)
        self.scaling = scaling
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, padding_mask: Tensor) -> Tensor:
        """
        Args:
            features: ``[B, N, D]``, averaged over N.
            padding_mask: ``[B, N]`` bool, True at padding. Each row must have a real feature.

        Returns:
            ``[B, X]`` in the weights' type: generation casts the model, not the batch.
        """
        content = scale_vectors(masked_mean(features, padding_mask), self.scaling)
        return F.linear(self.dropout(content).to(self.weight.dtype), self.weight)


class ContentEncoder(ConditionEncoder):
    """The projected content vector, equal at all places."""

    def __init__(self, content: ContentProjection) -> None:
        super().__init__()
        self.content = content

    def forward(self, features: Tensor, padding_mask: Tensor) -> dict[str, list[Tensor]]:
        """``condition``: one tensor ``[B, 1, X]``; for the arguments see
        :meth:`ContentProjection.forward`."""
        return {"condition": [self.content(features, padding_mask).unsqueeze(1)]}


class LogBilinearDecoder(FeatureDecoder):
    """Base of decoders that predict a word from the n-1 words before; a subclass defines the word
    vectors.

    Args:
        row_dim: Width of the word table, whose rows the output layer compares with.
        embedding_dim: K, dimension of the context's word vectors.
        context_length: n-1.
        dropout: Dropout of the output layer's input.
        embedding_dropout: Dropout of the context's vectors.

    Attributes:
        table: [V, row_dim], R or the transposed W^fv.
        output_bias: [V] b.
        context: Matrices C^(i), the matrix of the earliest word first.
        folded: [(n-1) * V, row_dim], see :meth:`make_generation_fast_`; None before it.
    """

    folded: Optional[Tensor]
    state_key = "log_bilinear"

    def __init__(
        self,
        dictionary: Any,
        row_dim: int,
        *,
        embedding_dim: int,
        context_length: int,
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
    ) -> None:
        super().__init__(dictionary)
        self.table = nn.Embedding(len(dictionary), row_dim, padding_idx=dictionary.pad())
        nn.init.normal_(self.table.weight, std=row_dim**-0.5)
        nn.init.zeros_(self.table.weight[dictionary.pad()])
        self.output_bias = nn.Parameter(torch.zeros(len(dictionary)))
        self.context = ContextWindow(context_length, embedding_dim, embedding_dim)
        self.context_length = context_length
        self.dropout = nn.Dropout(dropout)
        self.embedding_dropout = nn.Dropout(embedding_dropout)
        # moves and is cast with the model, and is in no checkpoint
        self.register_buffer("folded", None, persistent=False)

    def read(self, rows: Tensor) -> Tensor:
        """Vectors ``[..., K]`` of words of the context, of their rows ``[..., row_dim]``."""
        raise NotImplementedError

    def write(self, predicted: Tensor) -> Tensor:
        """A linear map ``[..., row_dim]`` of predicted vectors ``[..., K]``."""
        raise NotImplementedError

    def apply_condition(self, written: Tensor, condition: Tensor) -> Tensor:
        """``[B, T, row_dim]``, compared with the words, of the same and ``[B, T or 1, X]``."""
        raise NotImplementedError

    def make_generation_fast_(self, retain_dropout: bool = False, **unused: Any) -> None:
        """Called by fairseq before generating, after which it allows no more training. Folds all
        from a word of the context to the condition into one row for each of its places."""
        if retain_dropout:
            return
        with torch.no_grad():
            folded = self.write(self.context.of_table(self.read(self.table.weight)))
            self.folded = folded.flatten(0, 1).contiguous()

    def _window_step(self, words: Tensor) -> Tensor:
        """``[B, 1, row_dim]`` of windows ``[B, n-1]``, by :attr:`folded`."""
        assert self.folded is not None
        first_rows = torch.arange(self.context_length, device=words.device) * len(self.dictionary)
        return F.embedding_bag(words + first_rows, self.folded, mode="sum").unsqueeze(1)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]],
        incremental_state: Optional[dict] = None,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        """
        Args:
            prev_output_tokens: ``[B, T]`` words so far, the start token first.
            encoder_out: the encoder's condition.
            incremental_state: with it only the last word is new.
            **unused: of fairseq's generator.

        Returns:
            features: ``[B, T, row_dim]``, or ``[B, 1, row_dim]`` when decoding incrementally.
        """
        condition = encoder_out["condition"][0] if encoder_out["condition"] else None
        if incremental_state is None:
            T = prev_output_tokens.size(1)
            words = self._with_start(prev_output_tokens)
            if condition is not None and condition.size(1) > 1:
                places = torch.arange(T, device=words.device).clamp(max=condition.size(1) - 1)
                condition = condition.index_select(1, places)
        else:
            words, place = self._step_window(prev_output_tokens, incremental_state)
            if condition is not None and condition.size(1) > 1:
                place = place.clamp(max=condition.size(1) - 1)
                condition = condition[torch.arange(len(place), device=place.device), place]
                condition = condition.unsqueeze(1)
        if incremental_state is not None and self.folded is not None:
            written = self._window_step(words)
        else:
            embedded = self.embedding_dropout(self.read(self.table(words)))  # [B, T + n-2, K]
            written = self.write(self.context(embedded))
        features = written if condition is None else self.apply_condition(written, condition)
        return self.dropout(features), None

    def _with_start(self, tokens: Tensor) -> Tensor:
        """Pad the context with the start token: returns [B, T + n-2]."""
        return torch.cat([tokens[:, :1].expand(-1, self.context_length - 1), tokens], dim=1)

    def _step_window(self, tokens: Tensor, incremental_state: dict) -> tuple[Tensor, Tensor]:
        """Last words ``[B, n-1]`` and places ``[B]`` of the word that they predict."""
        saved = self.get_incremental_state(incremental_state, self.state_key)
        if saved is None:
            words = self._with_start(tokens)[:, -self.context_length :]
            place = tokens.new_full((tokens.size(0),), tokens.size(1) - 1)
        else:
            words = torch.cat([saved["words"][:, 1:], tokens[:, -1:]], dim=1)
            place = saved["place"] + 1
        kept = {"words": words, "place": place}
        self.set_incremental_state(incremental_state, self.state_key, kept)
        return words, place

    def output_layer(self, features: Tensor) -> Tensor:
        """Logits ``[..., V]`` of ``[..., row_dim]``."""
        return F.linear(features, self.table.weight, self.output_bias)


class AdditiveDecoder(LogBilinearDecoder):
    """``logits = R (r + m) + b`` (equations 7 and 8); m, the condition, may be missing.

    Args:
        dictionary: as of :class:`LogBilinearDecoder`.
        embedding_dim: K, the width of R as well.
        **options: of :class:`LogBilinearDecoder`.
    """

    def __init__(self, dictionary: Any, embedding_dim: int, **options: Any) -> None:
        super().__init__(dictionary, embedding_dim, embedding_dim=embedding_dim, **options)

    def read(self, rows: Tensor) -> Tensor:
        return rows

    def write(self, predicted: Tensor) -> Tensor:
        return predicted

    def apply_condition(self, written: Tensor, condition: Tensor) -> Tensor:
        return written + condition


class FactoredDecoder(LogBilinearDecoder):
    """``logits = (W^fv)' ((W^fk r) * g) + b`` (equations 9 and 10); g is the condition.

    Args:
        dictionary: as of :class:`LogBilinearDecoder`.
        embedding_dim: K.
        num_factors: F.
        **options: of :class:`LogBilinearDecoder`.

    Attributes:
        factor_weight: ``[F, K]`` W^fk: from a predicted vector to factors, transposed from a word's
            factors to its vector.
    """

    def __init__(
        self, dictionary: Any, embedding_dim: int, *, num_factors: int, **options: Any
    ) -> None:
        super().__init__(dictionary, num_factors, embedding_dim=embedding_dim, **options)
        self.factor_weight = nn.Parameter(torch.empty(num_factors, embedding_dim))
        nn.init.xavier_uniform_(self.factor_weight)

    def read(self, rows: Tensor) -> Tensor:
        return linear(rows, self.factor_weight.t())

    def write(self, predicted: Tensor) -> Tensor:
        return linear(predicted, self.factor_weight)

    def apply_condition(self, written: Tensor, condition: Tensor) -> Tensor:
        return written * condition


class LogBilinearModel(LoadStateDictMixin, FairseqEncoderDecoderModel):
    """Sentences by their last words and a content vector."""

    @classmethod
    def of_parts(
        cls, encoder: FairseqEncoder, decoder: LogBilinearDecoder, provenance: Provenance
    ) -> Any:
        """Build the model, which carries the provenance of its training data."""
        model = cls(encoder, decoder)
        model.add_module(MODULE_NAME, provenance)
        return model

    def forward(self, prev_output_tokens: Tensor, **inputs: Tensor) -> tuple[Tensor, None]:
        """
        Args:
            prev_output_tokens: ``[B, T]``.
            **inputs: of the encoder, see there.

        Returns:
            logits: ``[B, T, V]``, and None.
        """
        return self.decoder(prev_output_tokens, self.encoder(**inputs))


def content_projection(cfg: Any, task: Any, output_dim: int) -> ContentProjection:
    """Build the projection of the task's features."""
    return ContentProjection(
        task.feature_dim,
        output_dim,
        scaling=str(cfg.feature_scaling),
        dropout=cfg.feature_dropout,
    )


def decoder_options(cfg: Any) -> dict[str, Any]:
    """Return the options of the config that all decoders of the family share."""
    return {
        "embedding_dim": cfg.embedding_dim,
        "context_length": cfg.context_length,
        "dropout": cfg.dropout,
        "embedding_dropout": cfg.embedding_dropout,
    }
