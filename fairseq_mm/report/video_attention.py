"""Draws heat maps of the attention of a transcript's or summary's words to a video's frames."""

import base64
import io
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np
from PIL import Image

from fairseq_mm.report.html_page import Section, section

_COLOR = (10, 75, 179)  # colour of the greatest weight; brighter on a dark page
_MAX_LABELS = 10


class Times(NamedTuple):
    """Times of the frames of a video."""

    # seconds from the start of one frame to the start of the next; None if unknown
    step: Optional[float] = None
    # data URIs of n frames, from the middle of n equal parts of the video; empty for no thumbnails
    thumbnails: Sequence[str] = ()


def frames_section(
    words: Sequence[str],
    weights: np.ndarray,
    times: Times,
    *,
    is_known: Sequence[bool],
    sums_over_words: bool = False,
    video_shares: Optional[np.ndarray] = None,
) -> Section:
    """Return a page section with a heat map, a column per frame and a row per word.

    Above the map, bars show each frame's mean weight.

    Args:
        words: W words.
        weights: [W, M] attention weights.
        times: Times of the M frames.
        is_known: [W] False to underline the word, because the dictionary does not contain it.
        sums_over_words: True if the weights of each frame sum to 1; False if the weights of each
            word do.
        video_shares: [W] weight that the model gives to the video, not to the transcript.
    """
    W, M = weights.shape
    mean = weights.mean(axis=0)
    data_least, data_strongest = 100 * float(weights.min()), 100 * float(weights.max())
    uniform = 100 / (W if sums_over_words else M)
    # more than three digits where nearly uniform attention would read as "from 1.00 to 1.00 %"
    for digits in range(3, 8):
        shown = (data_least, data_strongest, uniform)
        least, strongest, alike = (f"{x:.{digits}g}" for x in shown)
        if least != strongest:
            break
    return section(
        "",
        "video_attention.html",
        "video_attention.js",
        least=least,
        strongest=strongest,
        alike=alike,
        # the script computes the weight under the pointer from the pixel's opacity
        data_least=data_least,
        data_strongest=data_strongest,
        words=words,
        is_known=is_known,
        sums_over_words=sums_over_words,
        shares=[] if video_shares is None else video_shares.tolist(),
        mean=mean.tolist(),
        highest=max(float(mean.max()), 1e-12),
        map=heat_uri(weights),
        step=times.step,
        thumbnails=times.thumbnails,
        marks=_marks(M, times.step),
    )


def heat_uri(weights: np.ndarray) -> str:
    """Draw weights [words, frames] as a PNG with one pixel per weight, and return its data URI.

    The smallest weight is transparent, the greatest opaque.
    """
    # a PNG, not cells of HTML: 600 words by 100 frames would be 60,000 elements
    least, strongest = float(weights.min()), float(weights.max())
    shares = (weights - least) / max(strongest - least, 1e-12)
    opacity = np.rint(255 * shares).astype(np.uint8)
    color = np.broadcast_to(np.array(_COLOR, np.uint8), (*opacity.shape, 3))
    stream = io.BytesIO()
    pixels = np.concatenate([color, opacity[..., None]], axis=-1)
    Image.fromarray(np.ascontiguousarray(pixels)).save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def _marks(num_frames: int, step: Optional[float]) -> list[tuple[float, float]]:
    """Return (position in percent, value) of each label of a video's time axis.

    The values are seconds, or numbers of frames if ``step`` (seconds per frame) is None.
    """
    length = num_frames * (step or 1.0)
    gap = 0.1 if step else 1.0
    factors = [2.0, 2.5, 2.0]  # gaps of 1, 2, 5, 10, 20, 50, ...
    while length / gap > _MAX_LABELS:
        gap *= factors[0]
        factors = [*factors[1:], factors[0]]
    count = int(length / gap * (1 + 1e-9))  # the last label, in spite of rounding errors
    return [(100 * n * gap / length, n * gap) for n in range(count + 1)]
