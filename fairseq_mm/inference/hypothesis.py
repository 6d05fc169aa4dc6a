"""What a model generates for an input."""

from dataclasses import dataclass, field
from typing import Any, Optional


@dataclass(frozen=True)
class Hypothesis:
    """A generated text, or a given one that was scored.

    Args:
        text: as people read it, detokenised.
        score: Mean natural log-probability of the tokens, ``</s>`` included; with ``lenpen`` their
            sum divided by their number to that power.
        tokens: indices of the target dictionary, ``</s>`` included.
        positional_scores: log-probability of each token.
        line: the tokens as text, as ``fairseq-generate`` prints them.
        sentences: of a visual story one for each image, detokenised; else empty.
        index: of the input; the draws of ``sampling`` depend on it.
        source: what the text was generated from, where that is text: a prompt or a transcript.
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
