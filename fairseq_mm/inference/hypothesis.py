"""Defines the class of generated and scored texts."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional, Union

from fairseq_mm.errors import UserError

# for annotations alone: these modules import torch
if TYPE_CHECKING:
    from fairseq_mm.inference.image_processor import KnownImage
    from fairseq_mm.inference.prompt_processor import Prompt
    from fairseq_mm.inference.video_processor import Transcript

# longer side in pixels of an image in a notebook
SIDE = 224

Source = Union["KnownImage", Sequence[Optional["KnownImage"]], "Prompt", "Transcript"]


@dataclass(frozen=True)
class Hypothesis:
    """Generated text, or a given text that was scored.

    In a notebook, a hypothesis is shown with its image or images.

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
        """Return HTML for notebooks: thumbnails of the images, the text and its score."""
        from fairseq_mm.extract.data_uris import jpeg_uri
        from fairseq_mm.extract.media import read_image

        images: Any = self.source if isinstance(self.source, list) else [self.source]
        shown = []
        for image in images:
            # prompts and transcripts have a text; the `text` of a PIL image is a dictionary
            if image is None or isinstance(getattr(image, "text", None), str):
                continue
            try:
                shown.append(f'<img src="{jpeg_uri(read_image(image), side=SIDE)}">')
            except UserError as error:  # such as a path that has been removed since
                shown.append(html.escape(str(error)))
        text = html.escape(self.text)
        return f"<div>{' '.join(shown)}<p>{text}</p><small>score {self.score:.4f}</small></div>"
