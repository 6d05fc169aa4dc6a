"""Scores of candidate captions: fit to the image, and to the language.

Kiros, Salakhutdinov, Zemel. Unifying Visual-Semantic Embeddings with Multimodal Neural Language
Models. 2014, section 5.2 of the supplementary material. https://arxiv.org/abs/1411.2539
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairseq_mm.data.rule_tagger import FUNCTION_WORDS
from fairseq_mm.errors import UserError

LANGUAGE_SCORES = ("word", "sentence")


@dataclass(frozen=True)
class CandidateWeights:
    """How much the parts of a candidate's score count:

        score = translation_weight * repeat_penalty^r * cosine + language_weight * log_prob

    where r counts the content words of the candidate that occurred in it before. A cosine below 0
    has no penalty: it would gain by one.

    Args:
        translation_weight: of the cosine between the image's and the candidate's vectors.
        language_weight: of the candidate's log-probability.
        language_score: ``word``: the mean log-probability of the candidate's words and of its end;
            ``sentence``: their sum, "the log-probability of the candidate" in the paper's words,
            which prefers short candidates however well they fit: a weight of the mean suits
            candidates of 4 and of 12 words alike. The paper set its weights by hand; the defaults
            were found on a hundred images of Flickr8k's dev part.
        repeat_penalty: from 0 to 1, which means none.

    Raises:
        UserError: if a value is out of its range.
    """

    translation_weight: float = 1.0
    language_weight: float = 0.2
    language_score: str = "word"
    repeat_penalty: float = 0.7

    def __post_init__(self) -> None:
        for name in ("translation_weight", "language_weight"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise UserError(f"`{name}` must be 0 or more, but is {value} instead.")
        if not 0 <= self.repeat_penalty <= 1:
            raise UserError(
                f"`repeat_penalty` must be from 0 to 1, but is {self.repeat_penalty} instead."
            )
        if self.language_score not in LANGUAGE_SCORES:
            raise UserError(
                f"`language_score` must be {' or '.join(LANGUAGE_SCORES)}, but is "
                f"{self.language_score!r} instead."
            )


class CandidateScores(NamedTuple):
    """Of each candidate ``[n]``.

    Attributes:
        score: the weighted sum.
        cosine: between the image's vector and the candidate's.
        log_prob: natural, by word or of the sentence.
        penalty: what a positive cosine is multiplied by.
    """

    score: np.ndarray
    cosine: np.ndarray
    log_prob: np.ndarray
    penalty: np.ndarray


def count_repetitions(words: Sequence[str]) -> int:
    """How many of the content words have occurred before; function words may occur at will."""
    counts = Counter(word for word in words if word not in FUNCTION_WORDS)
    return sum(counts.values()) - len(counts)


def score_candidates(
    sentences: Sequence[Sequence[str]],
    cosines: np.ndarray,
    log_probs: np.ndarray,
    weights: CandidateWeights,
) -> CandidateScores:
    """
    Args:
        sentences: words of each candidate.
        cosines: ``[n]`` between the image's vector and the candidate's.
        log_probs: ``[n]`` natural log-probabilities of the sentences, their ends included.
        weights: see there.
    """
    if weights.language_score == "word":
        log_probs = log_probs / np.array([len(words) + 1 for words in sentences])
    repetitions = np.array([count_repetitions(words) for words in sentences])
    penalties = weights.repeat_penalty ** repetitions.astype(np.float64)
    cosines = cosines.astype(np.float64)
    penalised = np.minimum(cosines, cosines * penalties)
    scores = weights.translation_weight * penalised + weights.language_weight * log_probs
    return CandidateScores(scores, cosines, log_probs, penalties)
