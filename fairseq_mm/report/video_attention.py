"""Attention of the words of a transcript or a summary to the frames of a video: heat maps with time
across, as sections of a page."""

import base64
import io
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np
from PIL import Image

from fairseq_mm.report.html_page import Section, section

_COLOR = (10, 75, 179)  # of the strongest weight; on a dark page it is made brighter
_MOST_LABELS = 10


class Times(NamedTuple):
    """When the frames of a video are.

    Attributes:
        step: seconds from the beginning of one to that of the next; None where nobody knows.
        thumbnails: data URIs of images, each of an equal part of the frames; may be none.
    """

    step: Optional[float] = None
    thumbnails: Sequence[str] = ()


def frames_section(
    words: Sequence[str],
    weights: np.ndarray,
    times: Times,
    *,
    is_known: Sequence[bool],
    heading: str = "",
    sums_over_words: bool = False,
    video_shares: Optional[np.ndarray] = None,
) -> Section:
    """A row a word, a column a frame; above them, the words' mean.

    Args:
        words: W.
        weights: ``[W, M]``.
        times: of the M frames.
        is_known: W; unknown words are underlined.
        heading: plain text.
        sums_over_words: weights are shares of a frame's, not of a word's.
        video_shares: ``[W]``, how much a word takes from the video rather than the transcript.
    """
    W, M = weights.shape
    mean = weights.mean(axis=0)
    data_least, data_strongest = 100 * float(weights.min()), 100 * float(weights.max())
    alike = 100 / (W if sums_over_words else M)
    least, strongest, shown_alike = _distinct(data_least, data_strongest, alike)
    return section(
        heading,
        "video_attention.html",
        "video_attention.js",
        least=least,
        strongest=strongest,
        alike=shown_alike,
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
    """A PNG of a pixel a weight ``[W, M]``, as a data URI: the least cannot be seen, the greatest
    is opaque."""
    least, strongest = float(weights.min()), float(weights.max())
    shares = (weights - least) / max(strongest - least, 1e-12)
    opacity = np.rint(255 * shares).astype(np.uint8)
    color = np.broadcast_to(np.array(_COLOR, np.uint8), (*opacity.shape, 3))
    stream = io.BytesIO()
    pixels = np.concatenate([color, opacity[..., None]], axis=-1)
    Image.fromarray(np.ascontiguousarray(pixels)).save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def _distinct(least: float, strongest: float, other: float) -> list[str]:
    """The numbers in as few digits as tell the first two apart."""
    for digits in range(3, 8):
        shown = [f"{x:.{digits}g}" for x in (least, strongest, other)]
        if shown[0] != shown[1]:
            break
    return shown


def _marks(num_frames: int, step: Optional[float]) -> list[tuple[float, float]]:
    """Places in per cent and labels: round numbers of seconds, or of frames."""
    length = num_frames * (step or 1.0)
    gap = 0.1 if step else 1.0
    factors = [2.0, 2.5, 2.0]
    while length / gap > _MOST_LABELS:
        gap *= factors[0]
        factors = [*factors[1:], factors[0]]
    count = int(length / gap * (1 + 1e-9))
    return [(100 * n * gap / length, n * gap) for n in range(count + 1)]
