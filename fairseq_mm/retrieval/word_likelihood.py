"""Computes log P of given tokens from a decoder's hidden states, with few logits in memory.

The output layer gives [tokens, vocabulary] logits, but the probability of a given token needs only
its own logit and a sum. Only a slice of rows is in memory, and the sum is computed in blocks of
columns that fit in the cache.

A temperature T divides the logits, of each model of an ensemble, as in generation. With top-k
sampling, every token outside the k most probable has probability 0, so a real text has probability
0 at any temperature. Therefore only tokens among the k most probable are scored, by their
probability among these k; at the best temperature of this likelihood, sampling is as peaked as the
text. For one model, the set of scored tokens does not depend on T. For an ensemble it does, so an
ensemble has no such temperature. Unknown words are no candidates, as in generation.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor, nn

CHUNK_BYTES = 64 * 2**20
_PIECE_BYTES = 2**20


class Tempered(NamedTuple):
    """Values [N, G] of log softmax(b l)[target] at inverse temperatures b, float64.

    ``slopes`` and ``curvatures`` are the first and second derivatives by b.
    """

    log_probs: Tensor
    slopes: Tensor
    curvatures: Tensor


def word_log_probs(
    decoder: Any, features: Tensor, target: Tensor, *, chunk_bytes: int = CHUNK_BYTES
) -> Tensor:
    """Compute log P [N] of given words, float32.

    Args:
        decoder: Decoder with ``output_layer``. If that is the linear layer ``output_proj``, a
            word's own logit is computed in float32 also under autocast.
        features: [N, E] hidden states.
        target: [N] words.
        chunk_bytes: Maximum bytes of float32 logits in memory; at least one row is computed at a
            time.
    """
    linear = getattr(decoder, "output_proj", None)
    results = []
    for rows, logits in logit_chunks(decoder, features, chunk_bytes=chunk_bytes):
        words = target[rows]
        if isinstance(linear, nn.Linear) and logits.dtype != torch.float32:
            # rounding averages out in the sum over the vocabulary, but not in a single logit
            own = (features[rows].float() * linear.weight[words].float()).sum(1)
            own = own if linear.bias is None else own + linear.bias[words].float()
        else:
            own = logits.gather(1, words.unsqueeze(1)).squeeze(1).float()
        sums = [piece.float().logsumexp(1) for piece in _pieces(logits)]
        results.append(own - torch.stack(sums).logsumexp(0))
    return torch.cat(results) if results else features.new_zeros(0)


def logit_chunks(
    decoder: Any, features: Tensor, *, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of the features and their logits [rows, V], which the caller may overwrite."""
    if not len(features):
        return
    # two rows: models have short cuts for the one word of a step of generation
    V = decoder.output_layer(features[:1].repeat(2, 1).unsqueeze(0)).size(-1)
    num_rows = max(1, chunk_bytes // (4 * V))
    for first in range(0, len(features), num_rows):
        rows = slice(first, min(first + num_rows, len(features)))
        yield rows, decoder.output_layer(features[rows].unsqueeze(0))[0]


def _pieces(logits: Tensor) -> Sequence[Tensor]:
    # blocks that stay in the cache between two operations; a GPU is faster with all columns
    columns = max(64, _PIECE_BYTES // (4 * len(logits)))
    if logits.device.type != "cpu":
        columns = logits.size(1)
    return logits.split(columns, dim=1)


def tempered_log_probs(logits: Tensor, target: Tensor, inverse_temperatures: Tensor) -> Tempered:
    """Compute log-probabilities of targets at several temperatures, with derivatives.

    ``logits`` are [N, V], ``target`` [N], b = ``inverse_temperatures`` [G]. With p = softmax(b l),
    the results [N, G] are log p[target], l[target] - E_p[l], and -Var_p[l].
    """
    # subtracted before the exponential, which would overflow at low temperatures
    largest = logits.amax(1, keepdim=True).float()
    G = len(inverse_temperatures)
    sums = torch.zeros(3, G, len(logits), dtype=torch.float64, device=logits.device)
    for piece in _pieces(logits):
        x = piece.float() - largest
        for g, b in enumerate(inverse_temperatures.tolist()):
            # E[l] and E[l^2] come from the same exponentials, so that one pass serves all three
            powers = (x * b).exp_()
            sums[0, g] += powers.sum(1)
            sums[1, g] += powers.mul_(x).sum(1)
            sums[2, g] += powers.mul_(x).sum(1)
    own = (logits.gather(1, target.unsqueeze(1)).float() - largest).double()  # [N, 1]
    total, mean, square = sums.transpose(1, 2)  # [N, G] each
    mean, square = mean / total, square / total
    b = inverse_temperatures.to(own)
    return Tempered(own * b - total.log(), own - mean, mean.square() - square)


def mixture(members: Sequence[Tempered]) -> Tempered:
    """Average the members' probabilities, with derivatives."""
    log_probs = torch.stack([member.log_probs for member in members])
    weights = log_probs.softmax(0)
    slopes = torch.stack([member.slopes for member in members])
    curvatures = torch.stack([member.curvatures for member in members])
    slope = (weights * slopes).sum(0)
    curvature = (weights * (curvatures + slopes.square())).sum(0) - slope.square()
    return Tempered(mean_log_probs(log_probs), slope, curvature)


def mean_log_probs(log_probs: Tensor) -> Tensor:
    """Return the logarithm of the mean probability over the first dimension, as for ensembles."""
    return log_probs.logsumexp(0) - torch.tensor(float(len(log_probs))).log().to(log_probs)


def top_candidates(
    logits: Tensor, target: Tensor, k: int, excluded: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Find the rows whose target is among the k most probable words.

    ``logits`` are [N, V] and are overwritten at the ``excluded`` words, which are never candidates;
    ``target`` is [N]. Returns logits [M, k] of the rows whose target is among the k, and the index
    [M] of the target.
    """
    logits[:, list(excluded)] = float("-inf")
    values, words = logits.topk(min(k, logits.size(1) - len(excluded)), dim=1)
    matches = words == target.unsqueeze(1)
    is_covered = matches.any(1)
    return values[is_covered], matches[is_covered].float().argmax(1)


class TemperatureSums:
    """Sums of token log-probabilities at several temperatures, in one pass.

    An object is the ``log_probs_of`` of :meth:`.TextLikelihood.batches`.

    Args:
        temperatures: Temperatures in ascending order, with 1.
        top_k: The k of the second sums; only for one model.
        chunk_bytes: Maximum bytes of logits in memory.

    Attributes:
        sums: [3, G] over all tokens so far: log-probability, slope and curvature by 1 / T.
        top_sums: The same for tokens among the ``top_k``.
        top_words: Number of tokens among the ``top_k``.
    """

    def __init__(
        self,
        models: Sequence[Any],
        dictionary: Any,
        temperatures: Sequence[float],
        *,
        top_k: Optional[int] = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        if top_k is not None and len(models) > 1:
            raise ValueError("`top_k` must be None for an ensemble.")
        self.models = models
        self.excluded = (dictionary.pad(), dictionary.unk())
        # in float64: sums over a million tokens, whose small differences between temperatures count
        self.inverse = 1 / torch.tensor(temperatures, dtype=torch.float64)
        self.unity = list(temperatures).index(1.0)
        self.top_k = top_k
        self.chunk_bytes = chunk_bytes
        self.sums = np.zeros((3, len(temperatures)))
        self.top_sums = np.zeros((3, len(temperatures)))
        self.top_words = 0

    def __call__(self, features: Sequence[Tensor], target: Tensor) -> Tensor:
        """Return log-probabilities [N] at temperature 1, and add to the sums."""
        log_probs = []
        for parts in zip(
            *(
                logit_chunks(model.decoder, hidden, chunk_bytes=self.chunk_bytes)
                for model, hidden in zip(self.models, features)
            )
        ):
            rows = parts[0][0]
            tempered = mixture(
                [tempered_log_probs(logits, target[rows], self.inverse) for _, logits in parts]
            )
            self.sums += _summed(tempered)
            log_probs.append(tempered.log_probs[:, self.unity])
            if self.top_k is not None:
                # last, since it overwrites the logits of excluded words
                candidates, place = top_candidates(
                    parts[0][1], target[rows], self.top_k, self.excluded
                )
                if len(place):
                    self.top_sums += _summed(tempered_log_probs(candidates, place, self.inverse))
                    self.top_words += len(place)
        return torch.cat(log_probs)


def _summed(tempered: Tempered) -> np.ndarray:
    return torch.stack([x.sum(0) for x in tempered]).cpu().numpy()
