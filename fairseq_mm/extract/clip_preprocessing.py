"""Preprocesses videos: decoded frames become resized, normalised clips.

All options are saved in one JSON object of the feature store. When a trained summarizer reads a new
video, the video is preprocessed with the saved options. This module runs in the decoding processes,
which do not import torch.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from PIL import Image

from fairseq_mm.errors import UserError
from fairseq_mm.extract.preprocessing import Preprocessing, with_options

if TYPE_CHECKING:
    from torch import Tensor

# a clip is in memory as a whole, as are those that are decoded ahead
MAX_FRAMES = 1024
MIN_FPS, MAX_FPS = 0.01, 1000


@dataclasses.dataclass(frozen=True)
class ClipPreprocessing(Preprocessing):
    """Options of the preprocessing of videos, in addition to the options for images.

    Args:
        resize_width: Width in pixels of frames that are resized with ``resize="squash"`` (without
            keeping their proportions); 0 for the height, ``resize_size``.
        antialias: Resize as Pillow does. False interpolates the nearest four pixels, as torchvision
            does with tensors; torchvision's video models were trained this way.
        frames: Number of frames in a clip.
        stride: Number of frames between the starts of two clips. If it equals ``frames``, clips
            neither overlap nor skip frames.
        fps: Frame rate that a video is resampled to; 0 reads every frame once.
    """

    resize_width: int = 0
    antialias: bool = True
    frames: int = 16
    stride: int = 16
    fps: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        is_fps = not self.fps or MIN_FPS <= self.fps <= MAX_FPS
        is_clip = 1 <= self.frames <= MAX_FRAMES and self.stride >= 1
        if not (self.fixed_shape and is_clip and is_fps):
            raise UserError(
                f"`frames` must be 1 to {MAX_FRAMES}, `stride` 1 or more, `fps` 0 or {MIN_FPS} to "
                f"{MAX_FPS}, and all frames of one size (--crop center or --resize squash), but "
                f"are {self.frames}, {self.stride}, {self.fps} and --crop {self.crop} --resize "
                f"{self.resize}."
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one clip: frames, height, width, 3."""
        if self.crop != "none":
            return self.frames, self.size, self.size, 3
        return self.frames, self.resize_size, self.resize_width or self.resize_size, 3

    def clips(self, frames: Iterable[Image.Image]) -> Iterator[np.ndarray]:
        """Cut frames in mode RGB into preprocessed clips ``[frames, height, width, 3]`` uint8.

        Frames after the last whole clip are dropped. If a video is shorter than one clip, it is
        repeated from its beginning until the clip is full (loop padding in Hara's code). One clip
        is in memory at a time.
        """
        window: list[np.ndarray] = []
        to_skip = 0
        is_first = True
        for frame in frames:
            if to_skip:
                to_skip -= 1
                continue
            window.append(self.apply(frame))
            if len(window) == self.frames:
                yield np.stack(window)
                is_first = False
                window = window[self.stride :]
                # a stride above the length of a clip: frames between two clips are not resized
                to_skip = max(0, self.stride - self.frames)
        if is_first and window:
            yield np.stack([window[i % len(window)] for i in range(self.frames)])

    def normalized(self, pixels: "Tensor") -> "Tensor":
        """Normalise clips by mean and deviation.

        Args:
            pixels: ``[B, frames, height, width, 3]`` uint8, in the order R, G, B.

        Returns:
            clips: ``[B, 3, frames, height, width]`` float32 input of the network.
        """
        frames = super().normalized(pixels.flatten(0, 1))  # [B * frames, 3, height, width]
        return frames.unflatten(0, pixels.shape[:2]).transpose(1, 2)

    def _get_new_size(self, width: int, height: int) -> tuple[int, int]:
        if self.resize == "squash" and self.resize_width:
            return self.resize_width, self.resize_size
        return super()._get_new_size(width, height)

    def _scale(self, image: Image.Image, new_size: tuple[int, int]) -> Image.Image:
        if self.antialias:
            return super()._scale(image, new_size)
        return _resize_bilinear(image, *new_size)


def with_clip_options(
    default: ClipPreprocessing,
    *,
    frames: Optional[int] = None,
    stride: Optional[int] = None,
    fps: Optional[float] = None,
    **options: Any,
) -> ClipPreprocessing:
    """Return the preprocessing ``default``, changed in the options whose argument is not None, as
    :func:`.with_options` does. If only ``frames`` is given, ``stride`` is set to the same value."""
    changed = with_options(default, **options)
    # the width changes in proportion, as the height does
    keeps_ratio = changed.resize == default.resize and not options.get("resize_size")
    side = changed.size if keeps_ratio and changed.crop != "none" else 0
    # 0 frames a second is a choice, too: every frame once
    changes: dict[str, Any] = {"fps": default.fps if fps is None else fps}
    changes["resize_width"] = round(side * default.resize_width / default.size)
    if frames or stride:
        changes["frames"] = frames or default.frames
        changes["stride"] = stride or changes["frames"]
    return dataclasses.replace(changed, **changes)


def _resize_bilinear(image: Image.Image, width: int, height: int) -> Image.Image:
    """Resize an image by bilinear interpolation without antialiasing.

    The centre of pixel i is at i + .5; beyond the edge of the image, the edge pixels are repeated.
    """
    # as torchvision with tensors; Pillow antialiases always, and torch is not imported here
    pixels = np.asarray(image)  # [old height, old width, 3]
    top, bottom, down = _find_neighbours(pixels.shape[0], height)
    left, right, across = _find_neighbours(pixels.shape[1], width)
    across = across[:, None]
    upper, lower = pixels[top], pixels[bottom]  # [height, old width, 3]
    upper = upper[:, left] * (1 - across) + upper[:, right] * across  # [height, width, 3]
    lower = lower[:, left] * (1 - across) + lower[:, right] * across
    down = down[:, None, None]
    mixed = upper * (1 - down) + lower * down
    return Image.fromarray(np.rint(mixed).astype(np.uint8))


def _find_neighbours(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each of ``new`` pixels in a row, the indices of its two neighbours among ``old``
    pixels, and the weight of the second."""
    place = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * np.float32(old / new)
    place = np.maximum(place - np.float32(0.5), 0)
    before = np.minimum(place.astype(np.int64), old - 1)
    return before, np.minimum(before + 1, old - 1), (place - before).astype(np.float32)
