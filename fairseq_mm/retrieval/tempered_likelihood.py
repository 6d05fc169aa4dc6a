"""Likelihood of texts at several temperatures of the softmax, in one pass.

A temperature T divides the logits, of each model of an ensemble, as in generation. With top-k
sampling every word outside the k likeliest has probability 0, and a real text has none at any
temperature. What is defined is the likelihood of those of its words that are among the k likeliest
at their place, given that they are: the temperature found for them makes sampling among k as
peaked as the text is. Which words those are does not depend on T for one model; for an ensemble it
does, so there it is not computed. Unknown words are no candidates, as in generation.
"""

from collections.abc import Sequence
from typing import Optional

import numpy as np
import torch
from torch import Tensor

from fairseq_mm.retrieval.story_likelihood import Pair, StoryLikelihood
from fairseq_mm.retrieval.word_likelihood import (
    Tempered,
    logit_slices,
    mixture,
    tempered_log_probs,
    top_candidates,
)


class TemperatureSums:
    """
    Args:
        likelihood: models and texts.
        temperatures: ascending; 1 is one of them.
        top_k: of the second sums; one model only.

    Attributes:
        sums: ``[3, G]`` over all words so far: log-probability, slope and curvature by 1 / T.
        top_sums: the same for words among the ``top_k``.
        top_words: number of those.
    """

    def __init__(
        self,
        likelihood: StoryLikelihood,
        temperatures: Sequence[float],
        *,
        top_k: Optional[int] = None,
    ) -> None:
        if top_k is not None and len(likelihood.models) > 1:
            raise ValueError("`top_k` must be None for an ensemble.")
        self.likelihood = likelihood
        self.inverse = 1 / torch.tensor(temperatures, dtype=torch.float64)
        self.unity = list(temperatures).index(1.0)
        self.top_k = top_k
        self.sums = np.zeros((3, len(temperatures)))
        self.top_sums = np.zeros((3, len(temperatures)))
        self.top_words = 0

    @torch.no_grad()
    def __call__(self, pairs: Sequence[Pair]) -> list[Tensor]:
        """As :meth:`StoryLikelihood.__call__`, at temperature 1; adds to the sums."""
        likelihood = self.likelihood
        batch = likelihood.features(pairs)
        log_probs = []
        with likelihood.autocast():
            for parts in zip(
                *(
                    logit_slices(model.decoder, features, slice_bytes=likelihood.slice_bytes)
                    for model, features in zip(likelihood.models, batch.features)
                )
            ):
                target = batch.target[parts[0][0]]
                tempered = mixture(
                    [tempered_log_probs(logits, target, self.inverse) for _, logits in parts]
                )
                self.sums += _summed(tempered)
                log_probs.append(tempered.log_probs[:, self.unity])
                if self.top_k is not None:
                    self._add_top(parts[0][1], target)
        return list(torch.cat(log_probs).cpu().split(batch.lengths))

    def _add_top(self, logits: Tensor, target: Tensor) -> None:
        dictionary = self.likelihood.dictionary
        candidates, place = top_candidates(
            logits, target, self.top_k or 0, (dictionary.pad(), dictionary.unk())
        )
        if len(place):
            self.top_sums += _summed(tempered_log_probs(candidates, place, self.inverse))
            self.top_words += len(place)


def _summed(tempered: Tempered) -> np.ndarray:
    return torch.stack([x.sum(0) for x in tempered]).cpu().numpy()
