"""Times of the rows of a video's features, and small images of the video."""

import math
from collections.abc import Mapping
from typing import Any, Optional

from fairseq_mm.errors import UserError
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.extract.videos import VideoReader
from fairseq_mm.report.thumbnails import jpeg_uri
from fairseq_mm.report.video_attention import Times

MOST_THUMBNAILS = 12
_SIDE, _QUALITY = 160, 75


def clip_step(attributes: Mapping[str, Any], frame_rate: Optional[float] = None) -> Optional[float]:
    """Return the seconds from one clip's start to the next; None if the store does not record them.

    Args:
        attributes: Attributes of the feature store: ``stride`` in frames, ``frame_rate``.
        frame_rate: Frame rate of the video, for stores of unsampled frames.
    """
    stride = _number(attributes.get("stride"))
    rate = _number(attributes.get("frame_rate")) or frame_rate
    return stride / rate if stride and rate else None


def _number(value: Any) -> Optional[float]:
    try:
        number = float(value)
    except (TypeError, ValueError):  # "native", or nothing
        return None
    return number if math.isfinite(number) and number > 0 else None


def video_times(video: MediaFile, num_rows: int, attributes: Mapping[str, Any]) -> Times:
    """Return the times of a video's rows, with thumbnails.

    Args:
        video: The video file.
        num_rows: Number of rows of its features.
        attributes: Attributes of the feature store.

    Raises:
        UserError: if the file is no video, or has no frame; the message names it.
    """
    stride = _number(attributes.get("stride"))
    rate = _number(attributes.get("frame_rate"))
    if stride is None:
        return Times()
    count = min(MOST_THUMBNAILS, num_rows)
    # the middle of each thumbnail's part, in frames from the beginning
    middles = [stride * num_rows * (i + 0.5) / count for i in range(count)]
    reader = VideoReader(video, keep_damaged=True)
    thumbnails: list[str] = []
    shown = None
    try:
        for number, (_, end, frame) in enumerate(reader.frames()):
            shown = frame
            while len(thumbnails) < count:
                middle = middles[len(thumbnails)]
                if (float(end) * rate if rate else number + 1) <= middle:
                    break
                thumbnails.append(jpeg_uri(frame, side=_SIDE, quality=_QUALITY))
            if len(thumbnails) == count and rate:
                break
    except UserError as error:
        raise UserError(f"{video.name}: {error}") from None
    while shown is not None and len(thumbnails) < count:
        # clips of a short video are filled up with its last frame
        thumbnails.append(jpeg_uri(shown, side=_SIDE, quality=_QUALITY))
    return Times(clip_step(attributes, reader.frame_rate or None), thumbnails)
