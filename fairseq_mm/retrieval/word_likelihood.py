"""Computes log P of given tokens from a decoder's hidden states, with few logits in memory.

The output layer gives [tokens, vocabulary] logits, but the probability of a given token needs only
its own logit and a sum. The logits of only some tokens are in memory at once, and the sum is
computed in blocks of the vocabulary that fit in the cache.

A temperature T divides the logits of each model, as in generation. With top-k sampling, tokens
outside the k most probable ones have probability 0, so that a real text has probability 0 at any
temperature. The top-k score therefore includes only the tokens of a text that are among the k most
probable ones, with their probability among these k. At the temperature with the highest score,
sampled tokens are on average as probable as the tokens of the text. For one model, the set of
scored tokens does not depend on T. For an ensemble, the set depends on T, and the top-k score is
not computed. Unknown words are not among the k tokens, as in generation.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor, nn

CHUNK_BYTES = 64 * 2**20
_PIECE_BYTES = 2**20


class Tempered(NamedTuple):
    """Log-probabilities of N tokens at G inverse temperatures b = 1 / T, with derivatives."""

    log_probs: Tensor  # [N, G] log softmax(b logits)[target], float64
    slopes: Tensor  # [N, G] first derivatives of ``log_probs`` with respect to b
    curvatures: Tensor  # [N, G] second derivatives of ``log_probs`` with respect to b


def word_log_probs(
    decoder: Any, features: Tensor, target: Tensor, *, chunk_bytes: int = CHUNK_BYTES
) -> Tensor:
    """Compute log P of N given words from a decoder's hidden states, [N] float32.

    If the output layer is a linear layer ``output_proj``, the logits of the given words are float32
    even under autocast.

    Args:
        features: [N, E] hidden state from which each word is predicted.
        target: [N] indices of the words.
        chunk_bytes: Maximum size of float32 logits in memory; at least the logits of one word.
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
    """Yield slices of rows of ``features`` [N, E] and their logits [rows, vocabulary], at most
    ``chunk_bytes`` large in float32; the caller may overwrite them."""
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

    With logits l, inverse temperatures b and p = softmax(b l), the results [N, G] are
    log p[target], its first derivative l[target] - E_p[l] with respect to b, and its second
    derivative -Var_p[l]. E_p and Var_p are mean and variance of the logits under p.

    Args:
        logits: [N, V] logits at N tokens for V words of the vocabulary.
        target: [N] index of each token in the vocabulary.
        inverse_temperatures: [G] values of b.
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
    """Average the probabilities of an ensemble's models, and combine their derivatives."""
    log_probs = [member.log_probs for member in members]
    weights = torch.stack(log_probs).softmax(0)
    slopes = torch.stack([member.slopes for member in members])
    curvatures = torch.stack([member.curvatures for member in members])
    slope = (weights * slopes).sum(0)
    curvature = (weights * (curvatures + slopes.square())).sum(0) - slope.square()
    return Tempered(mean_log_probs(log_probs), slope, curvature)


def mean_log_probs(log_probs: list[Tensor]) -> Tensor:
    """Average the probabilities of models, given as natural logarithms."""
    return torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))


def top_candidates(
    logits: Tensor, target: Tensor, k: int, excluded: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Select the tokens of a text that are among the k most probable words at their position.

    Args:
        logits: [N, V] logits at N tokens for V words of the vocabulary; set to ``-inf`` for the
            words ``excluded``.
        target: [N] index of each token in the vocabulary.
        k: Number of most probable words.
        excluded: Indices of words that are never among the k.

    Returns:
        For the M selected tokens, the logits [M, k] of the k most probable words, and the index [M]
        of the token among these k words.
    """
    logits[:, list(excluded)] = float("-inf")
    values, words = logits.topk(min(k, logits.size(1) - len(excluded)), dim=1)
    matches = words == target.unsqueeze(1)
    is_covered = matches.any(1)
    return values[is_covered], matches[is_covered].float().argmax(1)


class TemperatureSums:
    """Sums of token log-probabilities at several temperatures, in one pass over the tokens.

    An instance is a function that can be the argument ``log_probs_of`` of
    :meth:`.TextLikelihood.batches`.

    Args:
        models: Models of the ensemble.
        dictionary: fairseq dictionary of the texts.
        temperatures: G temperatures in ascending order, among them 1.
        top_k: Number k of most probable words for ``top_sums``; None for an ensemble, or to leave
            out ``top_sums``.
        chunk_bytes: Maximum size of the logits in memory, in bytes.

    Attributes:
        sums: [3, G] sums, over all tokens so far, of the log-probability and of its first and
            second derivative with respect to 1 / temperature, at each temperature.
        top_sums: [3, G] like ``sums``, but only over the tokens that are among the k =
            ``top_k`` most probable words; the probabilities of these k words are normalized to 1.
        top_words: Number of tokens in ``top_sums``.
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
        """Return log P [N] of N tokens at temperature 1; add log P at all temperatures to the sums.

        ``features`` are the hidden states [N, E] of each model, ``target`` [N] the tokens.
        """
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
