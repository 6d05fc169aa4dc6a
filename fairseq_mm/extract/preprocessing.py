"""Preprocesses images: resizes, crops, scales, and normalises them by mean and deviation.

By default, images are preprocessed as the weights of the network require. All options are saved in
the feature store. When a trained captioner reads a new image, the image is preprocessed with the
saved options.

Pillow resizes 8-bit images with antialiasing, which equals torchvision's transforms of a
``PIL.Image``. This module runs in the decoding processes, which do not import torch.
"""

import dataclasses
import functools
import json
import math
from typing import TYPE_CHECKING, Any, Optional, TypeVar

import numpy as np
from PIL import Image

from fairseq_mm.errors import UserError, file_errors

if TYPE_CHECKING:
    import torch
    from torch import Tensor

AnyPreprocessing = TypeVar("AnyPreprocessing", bound="Preprocessing")

RESIZES = ("short", "squash", "none")
CROPS = ("center", "center_floor", "none")
INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
# A strip of 1 x 10,000 pixels whose short side becomes 256 would have 655 million pixels.
MAX_ASPECT_RATIO = 16

# each in the order of the names in `normalization`
NORMALIZATIONS = {
    "imagenet": ("rgb", 1.0, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    # the Caffe releases of AlexNet, VGG and ResNet: BGR, 0 to 255, mean pixel of ImageNet
    "caffe": ("bgr", 255.0, (103.939, 116.779, 123.68), (1.0, 1.0, 1.0)),
    # TensorFlow's Inception and MobileNet: -1 to 1
    "half": ("rgb", 1.0, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "none": ("rgb", 1.0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    # 3D ResNets on Kinetics (Hara et al. 2018): 0 to 255. The published networks were trained with
    # the mean of ActivityNet, other networks with the mean of Kinetics
    "activitynet": ("rgb", 255.0, (114.7748, 107.7354, 99.4750), (1.0, 1.0, 1.0)),
    "kinetics": ("rgb", 255.0, (110.63541, 102.58343, 96.92744), (1.0, 1.0, 1.0)),
}


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """Options of the preprocessing of images.

    Args:
        resize: ``short`` (the short side becomes ``resize_size``, as in torchvision), ``squash``
            (both sides become ``resize_size``) or ``none``.
        resize_size: Size after resizing in pixels; ignored for ``none``.
        crop: ``center`` (a square of ``size``, padded with black if the image is smaller),
            ``center_floor`` or ``none``. If the left and top margins of the square are not whole
            numbers, ``center_floor`` rounds them down, as transformers does, and ``center`` rounds
            them to even numbers, as torchvision does.
        size: Side of the centre crop in pixels; ignored for ``none``.
        interpolation: One of ``INTERPOLATIONS``.
        channels: Order of the channels in ``mean``, ``std`` and the network's input: ``rgb`` or
            ``bgr``.
        scale: Value of the brightest pixels before normalisation: 1 or 255.
        mean: Mean that is subtracted from each of the three channels.
        std: Deviation that each of the three channels is divided by.
    """

    resize: str = "short"
    resize_size: int = 256
    crop: str = "center"
    size: int = 224
    interpolation: str = "bilinear"
    channels: str = "rgb"
    scale: float = 1.0
    mean: tuple[float, ...] = NORMALIZATIONS["imagenet"][2]
    std: tuple[float, ...] = NORMALIZATIONS["imagenet"][3]

    def __post_init__(self) -> None:
        names = (self.resize, self.crop, self.interpolation, self.channels)
        allowed: Any = (RESIZES, CROPS, INTERPOLATIONS, ("rgb", "bgr"))
        values = (*self.mean, *self.std)
        if (
            not all(name in choices for name, choices in zip(names, allowed))
            or min(self.resize_size, self.size) < 1
            or len(values) != 6
            or not all(isinstance(value, (int, float)) for value in values)
            or min(self.std) <= 0
        ):
            raise UserError(
                f"{self.to_json()} is no preprocessing: `resize` must be {' or '.join(RESIZES)}, "
                f"`crop` {' or '.join(CROPS)}, `interpolation` {' or '.join(INTERPOLATIONS)}, "
                "`channels` rgb or bgr, sizes 1 or more, `mean` and `std` 3 numbers each, and "
                "`std` above 0."
            )

    @property
    def fixed_shape(self) -> bool:
        """True if all images get the same size, so that any two images fit into one batch."""
        return self.crop != "none" or self.resize == "squash"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one preprocessed image: height, width, 3.

        If preprocessed images differ in size, this is the shape that a square image gets.
        """
        side = self.size if self.crop != "none" else self.resize_size
        return side, side, 3

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls: "type[AnyPreprocessing]", text: str) -> "AnyPreprocessing":
        """Read the output of ``to_json``. Raise UserError if ``text`` has another format."""
        with file_errors(f"the preprocessing {text!r:.300}", "cannot be understood"):
            values = json.loads(text)
            values["mean"], values["std"] = tuple(values["mean"]), tuple(values["std"])
            return cls(**values)

    def apply(self, image: Image.Image) -> np.ndarray:
        """Resize and crop an image in mode RGB to ``[height, width, 3]`` uint8 (R, G, B).

        Raise UserError if the image is so long and narrow that it cannot be resized in memory.
        """
        if self.resize == "short":
            image = self._cut_far_ends(image)
        if self.resize != "none":
            new_size = self._get_new_size(*image.size)
            image = image if new_size == image.size else self._scale(image, new_size)
        if self.crop != "none":
            image = _center_crop(image, self.size, floor=self.crop == "center_floor")
        return np.asarray(image)

    def _cut_far_ends(self, image: Image.Image) -> Image.Image:
        width, height = image.size
        long = MAX_ASPECT_RATIO * min(width, height)
        if max(width, height) <= long:
            return image
        if self.crop == "none":
            raise UserError(
                f"{width} x {height} pixels is longer than {MAX_ASPECT_RATIO} times its width."
            )
        # the removed ends lie far outside of the centre crop
        left, top = max(0, width - long) // 2, max(0, height - long) // 2
        return image.crop((left, top, width - left, height - top))

    def _get_new_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height that an image of ``width`` x ``height`` is resized to."""
        size = self.resize_size
        if self.resize == "squash":
            return size, size
        # torchvision rounds down, too
        new_long = int(size * max(width, height) / min(width, height))
        return (size, new_long) if width <= height else (new_long, size)

    def _scale(self, image: Image.Image, new_size: tuple[int, int]) -> Image.Image:
        return image.resize(new_size, INTERPOLATIONS[self.interpolation])

    def normalized(self, pixels: "Tensor") -> "Tensor":
        """Normalise images by mean and deviation.

        Args:
            pixels: ``[B, height, width, 3]`` uint8, in the order R, G, B.

        Returns:
            images: ``[B, 3, height, width]`` float32 input of the network.
        """
        images = pixels.permute(0, 3, 1, 2).float()  # [B, 3, height, width]
        if self.channels == "bgr":
            images = images.flip(1)
        if self.scale != 255:
            # a division, as in torchvision: a product with 1 / 255 differs in the last bit
            images = images / (255 / self.scale)
        mean, std = (_channel_values(x, images.device) for x in (self.mean, self.std))
        return (images - mean) / std


@functools.lru_cache(64)
def _channel_values(values: tuple[float, ...], device: "torch.device") -> "Tensor":
    """Return ``[3, 1, 1]`` float32 on a device; without the cache, each batch would wait for
    earlier batches, because copying to the device is synchronous."""
    import torch

    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float32, device=device).view(3, 1, 1)


def normalization(name: str) -> dict[str, Any]:
    """Return the entry ``name`` of ``NORMALIZATIONS`` as arguments of :class:`Preprocessing`."""
    return dict(zip(("channels", "scale", "mean", "std"), NORMALIZATIONS[name]))


def with_options(
    default: AnyPreprocessing,
    *,
    resize: Optional[str] = None,
    resize_size: Optional[int] = None,
    size: Optional[int] = None,
    crop: Optional[str] = None,
    normalize: Optional[str] = None,
) -> AnyPreprocessing:
    """Return the preprocessing ``default``, changed in the options whose argument is not None.

    ``normalize`` is one of ``NORMALIZATIONS``; :class:`Preprocessing` explains the other options.
    If ``size`` is given without ``resize_size``, images are resized to ``size``. There is one
    exception: if images are resized as by default and the centre is cropped, ``resize_size``
    changes in proportion to ``size``: from 256 to 512 if ``size`` changes from 224 to 448. Options
    without effect are set to fixed values, so that preprocessings with the same effect are equal.
    """
    resize, crop, side = resize or default.resize, crop or default.crop, size or default.size
    if not resize_size or resize == "none":
        crops_default = resize == default.resize and crop != "none"
        resize_size = round(side * default.resize_size / default.size) if crops_default else side
    if resize == "squash" and resize_size == side:
        crop = "none"  # the crop would change nothing
    changes: dict[str, Any] = {
        "resize": resize,
        "resize_size": resize_size,
        "crop": crop,
        "size": side if crop != "none" else resize_size,
    }
    if normalize:
        changes.update(normalization(normalize))
    return dataclasses.replace(default, **changes)


def _center_crop(image: Image.Image, side: int, *, floor: bool) -> Image.Image:
    """Return the square of ``side`` pixels in the centre of an image, padded with black."""
    width, height = image.size
    if width < side or height < side:
        left, top = max(0, side - width) // 2, max(0, side - height) // 2
        padded = Image.new("RGB", (max(width, side), max(height, side)))
        padded.paste(image, (left, top))
        image = padded
        width, height = image.size
    # rounded as by the library of the network: otherwise the crop would move by a pixel
    margin = math.floor if floor else round
    left, top = margin((width - side) / 2), margin((height - side) / 2)
    return image.crop((left, top, left + side, top + side))
