"""Computes the times of a video's features, and makes thumbnails of its frames."""

import math
from collections.abc import Mapping
from typing import Any, Optional

from fairseq_mm.errors import UserError
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.extract.videos import VideoReader
from fairseq_mm.report.thumbnails import jpeg_uri
from fairseq_mm.report.video_attention import Times

MAX_THUMBNAILS = 12
_SIDE, _QUALITY = 160, 75


def clip_step(attributes: Mapping[str, Any], frame_rate: Optional[float] = None) -> Optional[float]:
    """Return the seconds from the start of one feature's clip to the start of the next clip.

    The result is None if the seconds are unknown.

    Args:
        attributes: Attributes of the feature store: ``stride`` in frames, and ``frame_rate``.
        frame_rate: Frame rate of the video file, used if the store's ``frame_rate`` is no number:
            ``native`` means that every frame was read.
    """
    stride = _number(attributes.get("stride"))
    rate = _number(attributes.get("frame_rate")) or frame_rate
    return stride / rate if stride and rate else None


def _number(value: Any) -> Optional[float]:
    try:
        number = float(value)
    except (TypeError, ValueError):  # "native" of stores that took every frame, or no attribute
        return None
    return number if math.isfinite(number) and number > 0 else None


def video_times(video: MediaFile, num_rows: int, attributes: Mapping[str, Any]) -> Times:
    """Return the times of a video's features, and thumbnails of the video.

    Args:
        video: Video file.
        num_rows: Number of the video's feature vectors, one per frame or clip.
        attributes: Attributes of the feature store.
    """
    stride = _number(attributes.get("stride"))
    rate = _number(attributes.get("frame_rate"))
    if stride is None:
        return Times()
    count = min(MAX_THUMBNAILS, num_rows)
    # the middle of each thumbnail's part, in frames (of the store's frame rate) from the beginning
    middles = [stride * num_rows * (i + 0.5) / count for i in range(count)]
    # pages show what there is, also of videos that were damaged since
    reader = VideoReader(video, keep_damaged=True)
    thumbnails: list[str] = []
    last_frame = None
    try:
        for number, (_, end, frame) in enumerate(reader.frames()):
            last_frame = frame
            while len(thumbnails) < count:
                middle = middles[len(thumbnails)]
                if (float(end) * rate if rate else number + 1) <= middle:
                    break
                thumbnails.append(jpeg_uri(frame, side=_SIDE, quality=_QUALITY))
            # without a rate, all frames are decoded: the reader knows the rate at the end
            if len(thumbnails) == count and rate:
                break
    except UserError as error:
        raise UserError(f"{video.name}: {error}") from None
    while last_frame is not None and len(thumbnails) < count:
        # clips of a short video are filled up with its last frame
        thumbnails.append(jpeg_uri(last_frame, side=_SIDE, quality=_QUALITY))
    return Times(clip_step(attributes, reader.frame_rate or None), thumbnails)
