"""From decoded frames to clips as a network takes them: which frames, how large, how normalised.

Everything that decides about a video's features stands in one JSON object of the feature store, as
the preprocessing of images does, so that a video is treated later as those were that a summariser
was trained on.

This module runs in the decoding processes, which do not import torch.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from PIL import Image

from fairseq_mm.data.input_files import parse_json
from fairseq_mm.errors import UserError
from fairseq_mm.extract.preprocessing import Preprocessing, normalization

if TYPE_CHECKING:
    from torch import Tensor

MAX_FRAMES = 1024  # of a clip
MIN_FPS, MAX_FPS = 0.01, 1000


@dataclasses.dataclass(frozen=True)
class ClipPreprocessing(Preprocessing):
    """What is done to a video between the decoder and the network.

    Args:
        resize_width: with ``squash``, the width where it differs from ``resize_size``, which is
            the height then; 0 for a square.
        antialias: resize as Pillow does; False for bilinear interpolation of the nearest four
            pixels, as torchvision does with tensors (its video models were trained so).
        frames: of a clip.
        stride: frames from the beginning of a clip to that of the next; equal to ``frames``, clips
            neither overlap nor leave anything out.
        fps: frames a second that a video is resampled to; 0 takes each frame once, as it comes.
    """

    resize_width: int = 0
    antialias: bool = True
    frames: int = 16
    stride: int = 16
    fps: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.fixed_shape:
            raise UserError(
                "frames of all videos must have one size: --crop center or --resize squash."
            )
        if not 1 <= self.frames <= MAX_FRAMES:
            raise UserError(f"`frames` must be 1 to {MAX_FRAMES}, but is {self.frames} instead.")
        if self.stride < 1:
            raise UserError(f"`stride` must be 1 or more, but is {self.stride} instead.")
        if self.fps and not MIN_FPS <= self.fps <= MAX_FPS:
            raise UserError(f"`fps` must be {MIN_FPS} to {MAX_FPS}, but is {self.fps} instead.")
        if not self.antialias and self.interpolation != "bilinear":
            raise UserError(
                f"`interpolation` must be bilinear without antialiasing, but is "
                f"{self.interpolation!r} instead."
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one clip: frames, height, width, 3."""
        if self.crop == "center":
            return self.frames, self.size, self.size, 3
        return self.frames, self.resize_size, self.resize_width or self.resize_size, 3

    def num_clips(self, num_frames: int) -> int:
        """Clips of a video of ``num_frames`` frames: whole ones, but at least one."""
        return max(1, 1 + (num_frames - self.frames) // self.stride)

    def clips(self, frames: Iterable[Image.Image]) -> Iterator[np.ndarray]:
        """Cuts a video into clips; holds one clip at a time.

        Frames after the last whole clip are left out. A video that is shorter than one clip is
        repeated from its beginning until the clip is full (Hara's loop padding).

        Args:
            frames: in mode RGB, in the order of time.

        Yields:
            clip: ``[frames, height, width, 3]`` uint8.
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
                to_skip = max(0, self.stride - self.frames)
        if is_first and window:
            yield np.stack([window[i % len(window)] for i in range(self.frames)])

    def normalized(self, pixels: "Tensor") -> "Tensor":
        """
        Args:
            pixels: ``[B, frames, height, width, 3]`` uint8, in the order R, G, B.

        Returns:
            clips: ``[B, 3, frames, height, width]`` float32, what the network gets.
        """
        frames = super().normalized(pixels.flatten(0, 1))  # [B * frames, 3, height, width]
        return frames.unflatten(0, pixels.shape[:2]).transpose(1, 2)

    def _new_size(self, width: int, height: int) -> tuple[int, int]:
        if self.resize == "squash" and self.resize_width:
            return self.resize_width, self.resize_size
        return super()._new_size(width, height)

    def _scaled(self, image: Image.Image, new_size: tuple[int, int]) -> Image.Image:
        if self.antialias:
            return super()._scaled(image, new_size)
        return _bilinear(image, *new_size)


def with_clip_options(
    default: ClipPreprocessing,
    *,
    frames: Optional[int] = None,
    stride: Optional[int] = None,
    fps: Optional[float] = None,
    interpolation: Optional[str] = None,
    normalize: Optional[str] = None,
    **sizes: Any,
) -> ClipPreprocessing:
    """``default`` with a user's choices; what is not given stays.

    A ``size`` alone changes the size before the crop in proportion. ``frames`` without ``stride``
    leaves no gap between clips. ``interpolation`` other than bilinear is with antialiasing.

    Args:
        default: of the network.
        frames: see :class:`ClipPreprocessing`.
        stride: likewise.
        fps: likewise.
        interpolation: likewise.
        normalize: one of ``NORMALIZATIONS``.
        **sizes: ``resize``, ``resize_size``, ``size`` and ``crop``.
    """
    changes: dict[str, Any] = {"fps": default.fps if fps is None else fps}
    if frames or stride:
        changes["frames"] = frames or default.frames
        changes["stride"] = stride or changes["frames"]
    if any(sizes.values()):
        changes.update(_sizes(default, **sizes))
    if interpolation:
        changes["interpolation"] = interpolation
        changes["antialias"] = default.antialias or interpolation != "bilinear"
    if normalize:
        changes.update(normalization(normalize))
    return dataclasses.replace(default, **changes)


def _sizes(
    default: ClipPreprocessing,
    resize: Optional[str] = None,
    resize_size: Optional[int] = None,
    size: Optional[int] = None,
    crop: Optional[str] = None,
) -> dict[str, Any]:
    side = size or default.size
    crop = crop or default.crop
    resize_width = 0
    if not resize_size:
        keeps_ratio = crop == "center" and resize in (None, default.resize)
        resize_size = round(side * default.resize_size / default.size) if keeps_ratio else side
        resize_width = round(side * default.resize_width / default.size) if keeps_ratio else 0
    resize = resize or default.resize
    if resize == "squash" and resize_size == side and not resize_width:
        crop = "none"  # nothing is left to crop
    return {
        "resize": resize,
        "resize_size": resize_size,
        "resize_width": resize_width if resize == "squash" else 0,
        "crop": crop,
        "size": side if crop == "center" else resize_size,
    }


def describes_clips(preprocessing: object) -> bool:
    """Whether a store's attribute ``preprocessing`` is that of videos."""
    try:
        return "frames" in parse_json(str(preprocessing), "preprocessing")
    except (UserError, TypeError):
        return False


def _bilinear(image: Image.Image, width: int, height: int) -> Image.Image:
    """Interpolates the four pixels around each new one, half-pixel centres, edges repeated."""
    pixels = np.asarray(image)  # [old height, old width, 3]
    top, bottom, down = _neighbours(pixels.shape[0], height)
    left, right, across = _neighbours(pixels.shape[1], width)
    across = across[:, None]
    upper, lower = pixels[top], pixels[bottom]  # [height, old width, 3]
    upper = upper[:, left] * (1 - across) + upper[:, right] * across  # [height, width, 3]
    lower = lower[:, left] * (1 - across) + lower[:, right] * across
    down = down[:, None, None]
    mixed = upper * (1 - down) + lower * down
    return Image.fromarray(np.rint(mixed).astype(np.uint8))


def _neighbours(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index of the pixel before and after each new one, and the weight of the second."""
    place = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * np.float32(old / new)
    place = np.maximum(place - np.float32(0.5), 0)
    before = np.minimum(place.astype(np.int64), old - 1)
    return before, np.minimum(before + 1, old - 1), (place - before).astype(np.float32)
