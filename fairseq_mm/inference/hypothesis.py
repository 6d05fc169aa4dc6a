"""Class of generated and scored texts."""

from dataclasses import dataclass, field
from typing import Any, Optional


@dataclass(frozen=True)
class Hypothesis:
    """Generated text, or a given text that was scored.

    Args:
        text: Detokenized text.
        score: Sum of the tokens' natural log-probabilities, divided by ``n ** lenpen``, where n is
            the number of tokens, ``</s>`` included. The default of ``lenpen`` is 1, for the mean.
        tokens: Indices in the target dictionary, with ``</s>``.
        positional_scores: Natural log-probability of each token.
        line: Tokens separated by spaces, as ``fairseq-generate`` prints them.
        sentences: Detokenized sentences of a visual story, one per image; empty for other texts.
        index: Index of the input; when sampling, the random numbers of an input depend on it.
        source: Prompt or transcript that the text was generated from; None for other inputs.
    """

    text: str
    score: float
    tokens: list[int]
    positional_scores: list[float]
    line: str
    sentences: list[str] = field(default_factory=list)
    index: int = 0
    source: Optional[Any] = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.text
