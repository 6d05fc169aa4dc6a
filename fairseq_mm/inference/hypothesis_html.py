"""Shows hypotheses in notebooks, as HTML with embedded thumbnails."""

import html
import os
from typing import Any, Optional

from fairseq_mm.errors import UserError
from fairseq_mm.extract.data_uris import jpeg_uri
from fairseq_mm.extract.images import read_image
from fairseq_mm.extract.media_list import MediaFile

# longer side in pixels of the image of a caption, and of an image of a story
SIDE, STORY_SIDE = 224, 150
_SCORE_STYLE = "color:gray;font-size:smaller"


def render_hypothesis(hypothesis: Any) -> str:
    """Return HTML with the input of a hypothesis, its text and its score.

    ``hypothesis`` is a :class:`.Hypothesis`. Images are thumbnails inside the HTML; prompts and
    transcripts are folded. An image that cannot be read (any more) is replaced by its name.
    """
    source: Any = hypothesis.source
    score = f'<div style="{_SCORE_STYLE}">score {hypothesis.score:.4f}</div>'
    text = f"<div>{html.escape(hypothesis.text)}</div>"
    # PIL images of PNG files have a `text`, too, but it is a dictionary
    if isinstance(getattr(source, "text", None), str):
        kind = type(source).__name__.lower()
        folded = html.escape(source.text)
        body = f"<details><summary>{html.escape(kind)}</summary>{folded}</details>{text}"
    elif isinstance(source, list):
        body = _render_story(source, hypothesis.sentences)
    else:
        body = (_render_image(source, SIDE) if source is not None else "") + text
    return f"<div>{body}{score}</div>"


def _render_story(images: Any, sentences: list[str]) -> str:
    """Return HTML with a line of images and their sentences; further sentences have no image."""
    cells = []
    for number in range(max(len(images), len(sentences))):
        image = images[number] if number < len(images) else None
        shown = "" if image is None else _render_image(image, STORY_SIDE)
        sentence = html.escape(sentences[number]) if number < len(sentences) else ""
        cells.append(f'<div style="width:{STORY_SIDE}px">{shown}<div>{sentence}</div></div>')
    style = "display:flex;flex-wrap:wrap;gap:8px;align-items:flex-start"
    return f'<div style="{style}">{"".join(cells)}</div>'


def _render_image(image: Any, side: int) -> str:
    name = html.escape(_name_image(image) or "image", quote=True)
    try:
        uri = jpeg_uri(read_image(image), side=side)
    except UserError as error:  # such as a path that has been removed since
        return f'<div style="{_SCORE_STYLE}">{name}: {html.escape(str(error))}</div>'
    return f'<img src="{uri}" alt="{name}" title="{name}" style="max-width:{side}px">'


def _name_image(image: Any) -> Optional[str]:
    if isinstance(image, MediaFile):
        return image.name
    return os.path.basename(image) if isinstance(image, (str, os.PathLike)) else None
