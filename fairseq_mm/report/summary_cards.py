"""Cards of video summaries: frames, summary, transcript, and the share of the transcript that was
read.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from fairseq_mm.report.html_page import Section, section
from fairseq_mm.report.thumbnails import jpeg_uri


class SummaryCard(NamedTuple):
    """Card of one video.

    Attributes:
        name: Name of the video.
        summary: Detokenized summary.
        transcript: Transcript of the video.
        facts: Name -> number.
        images: Frames, [height, width, 3] uint8.
    """

    name: str
    summary: str
    transcript: str
    facts: Mapping[str, object]
    images: Sequence[np.ndarray] = ()


def cards_section(cards: Sequence[SummaryCard]) -> Section:
    """Return one card per summary, in order, with folded transcripts."""
    shown = [
        (card, [jpeg_uri(Image.fromarray(pixels)) for pixels in card.images]) for card in cards
    ]
    return section("", "summary_cards.html", cards=shown)
