"""Computes rewards of sampled texts: weighted sums of CIDEr-D, BLEU and ROUGE-L of one text.

Words are text or numbers. A finished text has the end token as its last word, in references and in
samples, so that the n-grams contain the end. Otherwise, the reward would not distinguish a complete
caption from a caption that stops before its last noun ("a dog runs through the").
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, Optional

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.bleu import smoothed_bleu
from fairseq_mm.metrics.cider import CiderD, InverseDocumentFrequencies
from fairseq_mm.metrics.rouge import rouge_l

REWARDS = ("cider", "bleu", "rouge_l")
Words = Sequence[Hashable]


class Job(NamedTuple):
    """Sampled texts of one image (or video) and its references."""

    samples: Sequence[Words]
    references: Sequence[Words]


def read_rewards(text: str) -> dict[str, float]:
    """Read the option ``--rewards``, such as ``cider=1,bleu=0.5``; weights of 1 are optional."""
    rewards: dict[str, float] = {}
    for part in text.split(","):
        name, sign, value = part.strip().partition("=")
        if name not in REWARDS:
            raise UserError(f"--rewards {text}: {name!r} is none of {', '.join(REWARDS)}.")
        try:
            weight = float(value) if sign else 1.0
        except ValueError:
            weight = math.nan
        if not 0 < weight < math.inf:
            raise UserError(
                f"--rewards {text}: the weight of {name} must be a number above 0, but is "
                f"{value!r}."
            )
        if name in rewards:
            raise UserError(f"--rewards {text}: has {name} twice.")
        rewards[name] = weight
    return rewards


class Rewards:
    """Weighted sum of metrics as a reward of sampled texts.

    Args:
        weights: Weight of each metric, see :func:`read_rewards`.
        frequencies: Weights of n-grams for CIDEr-D; None if ``weights`` have no ``cider``.
    """

    def __init__(
        self, weights: Mapping[str, float], frequencies: Optional[InverseDocumentFrequencies]
    ) -> None:
        self.weights = dict(weights)
        self.frequencies = frequencies

    def score(self, job: Job) -> list[float]:
        """Compute the reward of each sampled text of ``job``."""
        samples, references = job
        totals = [0.0] * len(samples)
        for name, weight in self.weights.items():
            if name == "cider":
                cider = CiderD([references], self.frequencies)
                scores = [cider.score_item(words, 0) for words in samples]
            elif name == "bleu":
                scores = [smoothed_bleu(words, references) for words in samples]
            else:
                scores = [rouge_l(words, references) for words in samples]
            totals = [total + weight * score for total, score in zip(totals, scores)]
        return totals
