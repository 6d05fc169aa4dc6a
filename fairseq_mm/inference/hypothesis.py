"""Class of generated and scored texts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional, Union

# for annotations alone: these modules import torch
if TYPE_CHECKING:
    from fairseq_mm.inference.caption_processor import KnownImage
    from fairseq_mm.inference.prompt_processor import Prompt
    from fairseq_mm.inference.video_processor import Transcript

Source = Union["KnownImage", Sequence[Optional["KnownImage"]], "Prompt", "Transcript"]


@dataclass(frozen=True)
class Hypothesis:
    """Generated text, or a given text that was scored.

    In a notebook, a hypothesis is shown with its image, images, prompt or transcript.

    Args:
        text: Detokenized text.
        score: Sum of the tokens' natural log-probabilities, divided by ``n ** lenpen``, where n is
            the number of tokens, ``</s>`` included. The default of ``lenpen`` is 1, for the mean.
        tokens: Indices in the target dictionary, with ``</s>``.
        positional_scores: Natural log-probability of each token.
        line: Tokens separated by spaces, as ``fairseq-generate`` prints them.
        sentences: Detokenized sentences of a visual story, one per image; empty for other texts.
        index: Index of the input; when sampling, the random numbers of an input depend on it.
        source: Input that the text was generated from. For a caption, the image as it was given (a
            path, the bytes of a file, a PIL image or an array ``[height, width, 3]``); for a visual
            story, the list of its images, with None for a missing image; otherwise a
            :class:`.prompt_processor.Prompt` or a :class:`.video_processor.Transcript`. An open
            file is replaced by its path. None for features, open files without a path, and
            language models.
        utility: Mean utility of the text with the other samples of its input as references, if the
            option ``mbr`` chose the text; else None.
    """

    text: str
    score: float
    tokens: list[int]
    positional_scores: list[float]
    line: str
    sentences: list[str] = field(default_factory=list)
    index: int = 0
    # not in the repr: the bytes of an image would fill pages
    source: Optional[Source] = field(default=None, compare=False, repr=False)
    utility: Optional[float] = None

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        from fairseq_mm.inference.hypothesis_html import render_hypothesis

        return render_hypothesis(self)
