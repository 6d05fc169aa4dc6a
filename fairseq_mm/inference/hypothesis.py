"""Results of generation."""

from dataclasses import dataclass, field
from typing import Any, Optional


@dataclass(frozen=True)
class Hypothesis:
    """Generated text, or a given text that was scored.

    Args:
        text: Detokenized text.
        score: Mean natural log-probability of the tokens, with ``</s>``; with ``lenpen``, their sum
            divided by their number to that power.
        tokens: Indices in the target dictionary, with ``</s>``.
        positional_scores: Log-probability of each token.
        line: Tokens as text, as ``fairseq-generate`` prints them.
        sentences: Detokenized sentences of a visual story, one per image; empty for other texts.
        index: Index of the input, on which the samples of ``sampling`` depend.
        source: Prompt or transcript that the text was generated from, if any.
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
