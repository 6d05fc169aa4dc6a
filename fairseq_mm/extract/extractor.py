"""A backbone and its preprocessing as one thing: images in, rows of features out."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import torch
from PIL import Image

from fairseq_mm.compat import convolution_memory_format
from fairseq_mm.errors import UserError
from fairseq_mm.extract import backbones, open_clip_backbones
from fairseq_mm.extract.backbones import Backbone
from fairseq_mm.extract.clip_preprocessing import describes_clips
from fairseq_mm.extract.identity import check_same_extractor, extractor_identity
from fairseq_mm.extract.images import MAX_PIXELS, read_image
from fairseq_mm.extract.preprocessing import Preprocessing, with_options
from fairseq_mm.extract.weights import recorded_weights

REDUCED_PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16}


class ImageExtractor:
    """Turns images into rows of features, always in evaluation mode and without gradients.

    Args:
        backbone: the network.
        preprocessing: from images to its input.
        device: where the network runs.
        precision: ``fp32``, or ``fp16`` or ``bf16`` by autocast; rows are float32 in any case.

    Attributes:
        dim: D, channels of every row.
        identity: what a feature store records (``identity.extractor_identity``).
    """

    def __init__(
        self,
        backbone: Backbone,
        preprocessing: Preprocessing,
        *,
        device: Union[str, torch.device] = "cpu",
        precision: str = "fp32",
    ) -> None:
        self.device = torch.device(device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"--device {device}: PyTorch finds no CUDA device.")
        self.preprocessing = preprocessing
        self.precision = precision
        # convolutions of 8-bit images as they lie in memory: 1.1 to 2 times as fast on a CPU
        self.memory_format = convolution_memory_format()
        network = backbone.network.eval().to(self.device)
        self.network = network.to(memory_format=self.memory_format)
        self.identity = extractor_identity(
            extractor=backbone.model,
            weights=backbone.weights,
            layer=backbone.layer,
            grid=backbone.grid,
            preprocessing=preprocessing,
        )
        side = preprocessing.output_side
        self.dim = int(self.rows(np.zeros((1, side, side, 3), dtype=np.uint8)).shape[2])

    def rows(self, pixels: np.ndarray) -> np.ndarray:
        """
        Args:
            pixels: ``[B, height, width, 3]`` uint8, preprocessed.

        Returns:
            rows: ``[B, rows, D]`` float32.

        Raises:
            UserError: if the network cannot take images of that size, or memory is short.
        """
        try:
            with torch.inference_mode(), self._autocast():
                images = torch.from_numpy(pixels).to(self.device, non_blocking=True)
                images = self.preprocessing.normalized(images)
                images = images.contiguous(memory_format=self.memory_format)
                return self.network(images).float().cpu().numpy()
        except (RuntimeError, AssertionError, IndexError) as error:
            height, width = pixels.shape[1:3]
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise UserError(
                f"{self.identity['extractor']}, layer {self.identity['layer']}: cannot be run on "
                f"{len(pixels)} images of {width} x {height} pixels: {reason}"
            ) from None

    def _autocast(self) -> contextlib.AbstractContextManager:
        dtype = REDUCED_PRECISIONS.get(self.precision)
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=dtype)

    def pixels(
        self, file: Union[str, os.PathLike, bytes, Image.Image], *, max_pixels: int = MAX_PIXELS
    ) -> np.ndarray:
        """One decoded and preprocessed image ``[height, width, 3]`` uint8, see ``rows``."""
        return self.preprocessing.apply(read_image(file, max_pixels=max_pixels))

    def extract(
        self, images: Sequence[Union[str, Image.Image]], *, batch_size: int = 16
    ) -> list[np.ndarray]:
        """Features of a few images, decoded one after the other.

        Args:
            images: paths or open images.
            batch_size: images that the network gets at a time; it changes nothing but the speed.

        Returns:
            features: for each image ``[rows, D]`` float32.

        Raises:
            UserError: naming the image that cannot be read.
        """
        features: list[np.ndarray] = []
        for start in range(0, len(images), batch_size):
            batch = []
            for number, image in enumerate(images[start : start + batch_size], start=start):
                try:
                    batch.append(self.pixels(image))
                except UserError as error:
                    is_open = isinstance(image, Image.Image)
                    name = f"image {number}" if is_open else str(image)
                    raise UserError(f"{name}: {error}") from None
            features += self.rows_of_each(batch)
        return features

    def rows_of_each(self, pixels: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Like ``rows`` for images of different sizes; those of one size share a batch."""
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for i, image in enumerate(pixels):
            by_shape.setdefault(image.shape, []).append(i)
        features: dict[int, np.ndarray] = {}
        for members in by_shape.values():
            rows = self.rows(np.stack([pixels[i] for i in members]))
            features.update(zip(members, rows))
        return [features[i] for i in range(len(pixels))]


def build_extractor(
    model: str,
    *,
    weights: Optional[str] = None,
    layer: Optional[str] = None,
    grid: bool = False,
    seed: int = 0,
    device: Union[str, torch.device] = "cpu",
    precision: str = "fp32",
    **options: Any,
) -> ImageExtractor:
    """An extractor by names.

    Args:
        model: of torchvision, or ``open_clip:NAME[/PRETRAINED]``.
        weights: file, name or ``none``; None for torchvision's default ones.
        layer: node of a torchvision network; None for the model's default.
        grid: one row a position.
        seed: of random weights.
        device: where the network runs.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        **options: of ``preprocessing.with_options``.

    Raises:
        UserError: see ``build_backbone`` and ``build_open_clip``.
    """
    if model.startswith(open_clip_backbones.PREFIX):
        if layer is not None:
            raise UserError("--layer: is for models of torchvision; open_clip has --grid or not.")
        backbone, default = open_clip_backbones.build_open_clip(
            model, weights=weights, grid=grid, seed=seed
        )
        preprocessing = with_options(default, **options)
    else:
        weights = weights or "DEFAULT"
        backbones.check_model(model)
        preprocessing = with_options(backbones.default_preprocessing(model, weights), **options)
        backbone = backbones.build_backbone(
            model, weights=weights, layer=layer, grid=grid, seed=seed
        )
    return ImageExtractor(backbone, preprocessing, device=device, precision=precision)


def build_extractor_from_identity(
    identity: Mapping[str, object],
    weights_file: Optional[str] = None,
    device: Union[str, torch.device] = "cpu",
) -> ImageExtractor:
    """The extractor that a feature store or a checkpoint records.

    Args:
        identity: attributes of the store.
        weights_file: the state dict file; needed if the store was made with one.
        device: where the network runs.

    Raises:
        UserError: if the identity is incomplete, or ``weights_file`` is missing or another file.
    """
    check_same_extractor(identity, identity, recorded_by="the checkpoint's features")
    model, recorded = str(identity["extractor"]), str(identity["weights"])
    if describes_clips(identity["preprocessing"]):
        raise UserError(f"the features were made by {model}, which reads videos, not images.")
    weights, seed = recorded_weights(
        model, recorded, weights_file, sources=("torchvision", "open_clip")
    )
    is_clip = model.startswith(open_clip_backbones.PREFIX)
    grid = bool(identity["grid"])
    if is_clip:
        backbone, _default = open_clip_backbones.build_open_clip(
            model, weights=weights, grid=grid, seed=seed
        )
    else:
        backbone = backbones.build_backbone(
            model, weights=weights, layer=str(identity["layer"]), grid=grid, seed=seed
        )
    preprocessing = Preprocessing.from_json(str(identity["preprocessing"]))
    return ImageExtractor(backbone, preprocessing, device=device)
