"""From a decoded image to the network's input: resize, crop, scale, mean and deviation.

The defaults of every backbone are those of its weights (torchvision's or open_clip's), and every
choice stands in the feature store, so that a single image is treated later as those were
that a captioner was trained on.

Resizing is Pillow's, with anti-aliasing, on 8-bit images: the same as torchvision's transforms
make of a ``PIL.Image``. It runs in the decoding processes, which do not import torch.
"""

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Optional, TypeVar

import numpy as np
from PIL import Image

from fairseq_mm.data.input_files import parse_object
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

AnyPreprocessing = TypeVar("AnyPreprocessing", bound="Preprocessing")

RESIZES = ("short", "squash", "none")
CROPS = ("center", "none")
INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
# A strip of 1 x 10,000 pixels whose short side becomes 256 would have 655 million pixels.
MAX_ASPECT_RATIO = 16

# name -> channel order, greatest pixel value, mean, deviation
NORMALIZATIONS = {
    "imagenet": ("rgb", 1.0, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    # the Caffe releases of AlexNet, VGG and ResNet: BGR, 0 to 255, mean pixel of ImageNet
    "caffe": ("bgr", 255.0, (103.939, 116.779, 123.68), (1.0, 1.0, 1.0)),
    # TensorFlow's Inception and MobileNet: -1 to 1
    "half": ("rgb", 1.0, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "none": ("rgb", 1.0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    # 3D ResNets on Kinetics (Hara et al. 2018): 0 to 255. The published networks were trained with
    # the mean of ActivityNet; that of Kinetics is for networks trained with it.
    "activitynet": ("rgb", 255.0, (114.7748, 107.7354, 99.4750), (1.0, 1.0, 1.0)),
    "kinetics": ("rgb", 255.0, (110.63541, 102.58343, 96.92744), (1.0, 1.0, 1.0)),
}


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """What is done to an image between the file and the network.

    Args:
        resize: ``short`` (the short side becomes ``resize_size``, as torchvision does), ``squash``
            (both sides become ``resize_size``) or ``none``.
        resize_size: pixels; of no meaning for ``none``.
        crop: ``center`` (a square of ``size``, padded with black where the image is smaller) or
            ``none``.
        size: side of the centre crop in pixels; of no meaning for ``none``.
        interpolation: one of ``INTERPOLATIONS``.
        channels: ``rgb`` or ``bgr``, the order of ``mean`` and ``std`` and of the network's input.
        scale: what the pixel value 255 becomes before mean and deviation: 1 or 255.
        mean: of the three channels, subtracted.
        std: of the three channels, divided by.
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
        for name, allowed in (
            ("resize", RESIZES),
            ("crop", CROPS),
            ("interpolation", tuple(INTERPOLATIONS)),
            ("channels", ("rgb", "bgr")),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise UserError(
                    f"`{name}` must be one of {', '.join(allowed)}, but is {value!r} instead."
                )
        for name in ("resize_size", "size"):
            if getattr(self, name) < 1:
                raise UserError(f"`{name}` must be 1 or more, but is {getattr(self, name)}.")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) != 3 or not all(isinstance(value, (int, float)) for value in values):
                raise UserError(f"`{name}` must have 3 numbers, but is {values!r:.100} instead.")
        if min(self.std) <= 0:
            raise UserError(f"`std` must be above 0, but is {self.std}.")

    @property
    def fixed_shape(self) -> bool:
        """True if every image becomes equally large, so that any two fit into one batch."""
        return self.crop == "center" or self.resize == "squash"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of what the network gets: height, width, 3; a square where images differ in size."""
        side = self.size if self.crop == "center" else self.resize_size
        return side, side, 3

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls: "type[AnyPreprocessing]", text: str) -> "AnyPreprocessing":
        """
        Raises:
            UserError: if ``text`` is not what ``to_json`` writes.
        """
        try:
            values = parse_object(text, "JSON")
            values["mean"], values["std"] = tuple(values["mean"]), tuple(values["std"])
            return cls(**values)
        except (TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"the preprocessing {text!r:.300} cannot be understood: {error!r}"
            ) from None

    def apply(self, image: Image.Image) -> np.ndarray:
        """Resizes and crops.

        Args:
            image: in mode RGB.

        Returns:
            pixels: ``[height, width, 3]`` uint8, in the order R, G, B.

        Raises:
            UserError: if the image is so long that resizing would not fit into memory.
        """
        image = self._resized(image)
        if self.crop == "center":
            image = _center_crop(image, self.size)
        return np.asarray(image)

    def _resized(self, image: Image.Image) -> Image.Image:
        if self.resize == "none":
            return image
        if self.resize == "short":
            image = self._without_far_ends(image)
        new_size = self._new_size(*image.size)
        return image if new_size == image.size else self._scaled(image, new_size)

    def _without_far_ends(self, image: Image.Image) -> Image.Image:
        width, height = image.size
        short, long = min(width, height), max(width, height)
        if long <= MAX_ASPECT_RATIO * short:
            return image
        if self.crop == "none":
            raise UserError(
                f"{width} x {height} pixels is longer than {MAX_ASPECT_RATIO} times its width."
            )
        # what is cut off here lies far outside of the centre crop
        return _center_box(image, MAX_ASPECT_RATIO * short)

    def _new_size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height to resize to."""
        size = self.resize_size
        if self.resize == "squash":
            return size, size
        # rounded down, as torchvision does
        new_long = int(size * max(width, height) / min(width, height))
        return (size, new_long) if width <= height else (new_long, size)

    def _scaled(self, image: Image.Image, new_size: tuple[int, int]) -> Image.Image:
        return image.resize(new_size, INTERPOLATIONS[self.interpolation])

    def normalized(self, pixels: "Tensor") -> "Tensor":
        """
        Args:
            pixels: ``[B, height, width, 3]`` uint8, in the order R, G, B.

        Returns:
            images: ``[B, 3, height, width]`` float32, what the network gets.
        """
        images = pixels.permute(0, 3, 1, 2).float()  # [B, 3, height, width]
        if self.channels == "bgr":
            images = images.flip(1)
        if self.scale != 255:
            images = images / (255 / self.scale)
        mean = images.new_tensor(self.mean).view(3, 1, 1)
        std = images.new_tensor(self.std).view(3, 1, 1)
        return (images - mean) / std


def normalization(name: str) -> dict[str, Any]:
    """One of ``NORMALIZATIONS`` as arguments of :class:`Preprocessing`."""
    return dict(zip(("channels", "scale", "mean", "std"), NORMALIZATIONS[name]))


def with_options(
    default: Preprocessing,
    *,
    resize: Optional[str] = None,
    resize_size: Optional[int] = None,
    size: Optional[int] = None,
    crop: Optional[str] = None,
    interpolation: Optional[str] = None,
    normalize: Optional[str] = None,
) -> Preprocessing:
    """``default`` with a user's choices; what is not given stays.

    A ``size`` without ``resize_size`` keeps the default's ratio of the two (256 to 224, say) where
    a short side is resized and then cropped, and resizes to ``size`` itself elsewhere. Two sets of
    choices that do the same become equal.
    """
    resize, crop, side = resize or default.resize, crop or default.crop, size or default.size
    if not resize_size or resize == "none":
        crops_default = resize == default.resize == "short" and crop == "center"
        resize_size = round(side * default.resize_size / default.size) if crops_default else side
    if resize == "squash" and resize_size == side:
        crop = "none"  # nothing is left to crop
    changes: dict[str, Any] = {
        "resize": resize,
        "resize_size": resize_size,
        "crop": crop,
        "size": side if crop == "center" else resize_size,
    }
    if interpolation:
        changes["interpolation"] = interpolation
    if normalize:
        changes.update(normalization(normalize))
    return dataclasses.replace(default, **changes)


def _center_crop(image: Image.Image, side: int) -> Image.Image:
    """A square of ``side`` around the centre, rounded and padded as torchvision's."""
    width, height = image.size
    if width < side or height < side:
        left, top = max(0, side - width) // 2, max(0, side - height) // 2
        padded = Image.new("RGB", (max(width, side), max(height, side)))
        padded.paste(image, (left, top))
        image = padded
        width, height = image.size
    left, top = round((width - side) / 2), round((height - side) / 2)
    return image.crop((left, top, left + side, top + side))


def _center_box(image: Image.Image, long: int) -> Image.Image:
    """The middle of a strip, ``long`` pixels along its long side."""
    width, height = image.size
    left, top = max(0, width - long) // 2, max(0, height - long) // 2
    return image.crop((left, top, width - left, height - top))
