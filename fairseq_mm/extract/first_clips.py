"""The first clips of a video as features: what a model that looks at so many reads of it.

Nothing behind them is decoded, however long the video is.
"""

import contextlib
from typing import NamedTuple

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.extract.clip_decoding import Decoding, VideoEnd, decode_video
from fairseq_mm.extract.images import MAX_PIXELS
from fairseq_mm.extract.video_extractor import VideoExtractor
from fairseq_mm.extract.videos import AnyVideo, import_av


class FirstClips(NamedTuple):
    """
    Attributes:
        rows: ``[clips, D]`` float32, features of the clips.
        is_cut: the video has more of them.
        images: ``[height, width, 3]`` uint8, the middle frames of clips far from each other, as
            the network gets them.
    """

    rows: np.ndarray
    is_cut: bool
    images: list[np.ndarray]


def extract_first_clips(
    extractor: VideoExtractor,
    video: AnyVideo,
    limit: int,
    *,
    batch_size: int = 8,
    keep_damaged: bool = False,
    max_pixels: int = MAX_PIXELS,
    num_images: int = 0,
) -> FirstClips:
    """
    Args:
        extractor: network and preprocessing.
        video: path, content, or an entry of a list.
        limit: clips at most.
        batch_size: clips that the network gets at a time; it changes nothing but the speed.
        keep_damaged: take what can be decoded of a truncated or damaged video.
        max_pixels: larger frames are refused.
        num_images: middle frames to keep.

    Raises:
        UserError: the reason why the video cannot be read, without its name.
    """
    import_av()
    rows: list[np.ndarray] = []
    batch: list[np.ndarray] = []
    images: list[np.ndarray] = []
    count, is_cut = 0, False
    events = decode_video(video, Decoding(extractor.preprocessing, keep_damaged, max_pixels))
    with contextlib.closing(events):  # type: ignore[type-var]
        for event in events:
            if isinstance(event, str):
                raise UserError(event)
            if isinstance(event, VideoEnd):
                break
            if count == limit:
                is_cut = True
                break
            count += 1
            batch.append(event)
            if num_images:
                images.append(event[len(event) // 2])
            if len(batch) == batch_size:
                rows.append(extractor.rows(np.stack(batch)))
                batch.clear()
    if batch:
        rows.append(extractor.rows(np.stack(batch)))
    places = np.linspace(0, count - 1, min(num_images, count)).round().astype(int)
    return FirstClips(np.concatenate(rows), is_cut, [images[place] for place in places])
