"""Reads images for training, and builds the image network that computed a feature store, so that it
can be trained together with the model.

The network has the tensor names of torchvision. Its batch normalisations keep their running
statistics: they normalise as in evaluation, and only their scales and shifts are trained.
"""

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor, nn

from fairseq_mm.errors import UserError
from fairseq_mm.extract.backbones import build_image_backbone, list_image_models
from fairseq_mm.extract.media import MediaFile, by_any_key, list_images
from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.extract.readers import ImageReader
from fairseq_mm.extract.weights import check_is_recorded, check_same_network, recorded_weights

logger = logging.getLogger(__name__)


class PhotoStore:
    """Images of a folder, decoded and preprocessed as ``fairseq-mm extract`` does; an image has one
    row, its ``dim`` uint8 pixels in the order height, width, channel.

    Args:
        folder: Folder of the images, which is searched with its subfolders. A key is the
            image's path in the folder, its name, or its name without suffix.
        preprocessing: Preprocessing that gives all images the same size.
        num_rows: Number of feature vectors per image that the network returns, for
            ``--max-tokens``.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, folder: str, preprocessing: Preprocessing, *, num_rows: int = 1) -> None:
        self.path = folder
        self.dim = int(np.prod(preprocessing.input_shape))
        self.num_rows = num_rows
        self._reader = ImageReader(preprocessing)
        self._files: dict[str, MediaFile] = by_any_key(list_images([folder], ids="path"))
        self._pixels: dict[str, np.ndarray] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._files

    def count_rows(self, key: str) -> int:
        return self.num_rows

    def check_keys(self, keys: Iterable[str], split: str) -> None:
        """Raise UserError if the folder lacks images of a split."""
        keys = set(keys)
        missing = sorted(key for key in keys if key not in self._files)
        if missing:
            raise UserError(
                f"{self.path}: must have the images of {split}, each name once, but has not "
                f"{len(missing)} of {len(keys)}, such as {missing[0]!r}."
            )

    def preload(self, keys: Iterable[str]) -> None:
        """Decode images, and keep their pixels in memory; forked processes share them."""
        missing = sorted(set(keys) - set(self._pixels))
        if not missing:
            return
        size = len(missing) * self.dim / 2**20
        logger.info(f"{self.path}: decodes {len(missing)} images to memory ({size:,.0f} MiB)")
        # one array, because pages with Python objects would be copied in forked processes
        pixels = np.empty((len(missing), 1, self.dim), np.uint8)
        for row, key in zip(pixels, missing):
            row[:] = self._decode(key)
        self._pixels.update(zip(missing, pixels))

    def read(self, key: str) -> np.ndarray:
        """Return the pixels ``[1, dim]`` uint8 of an image."""
        pixels = self._pixels.get(key)
        return self._decode(key) if pixels is None else pixels

    def _decode(self, key: str) -> np.ndarray:
        file = self._files[key]
        (pixels,) = self._reader.inputs(file, file.name)
        return pixels.reshape(1, -1)

    def __getstate__(self) -> dict[str, Any]:
        # a process that is spawned decodes its images itself
        return {**self.__dict__, "_pixels": {}}


class FixedNorm(nn.Module):
    """Batch normalisation of maps ``[B, C, H, W]`` with fixed statistics; with ``is_folded`` it
    does nothing, because the convolution before it includes it."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        # without num_batches_tracked: fairseq's average of the weights fails on integers
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)
        self.is_folded = False

    def compute_scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Return the scale and the shift of the channels, ``[C]`` float32 each."""
        scale = self.weight.float() * (self.running_var.float() + self.eps).rsqrt()
        return scale, self.bias.float() - self.running_mean.float() * scale

    def forward(self, maps: Tensor) -> Tensor:
        if self.is_folded:
            return maps
        scale, shift = self.compute_scale_and_shift()
        return maps * scale.to(maps.dtype)[:, None, None] + shift.to(maps.dtype)[:, None, None]


class FoldedConv(nn.Conv2d):
    """Convolution that also computes the :class:`FixedNorm` after it.

    Normalising the weights instead of the outputs saves a fifth of an update's time on a CPU.
    """

    # a tuple, so that the normalisation is a submodule at its own place only
    following: tuple[FixedNorm]

    def forward(self, maps: Tensor) -> Tensor:
        scale, shift = self.following[0].compute_scale_and_shift()
        weight = self.weight * scale[:, None, None, None]
        if self.bias is not None:
            shift = shift + self.bias * scale
        return self._conv_forward(maps, weight.to(maps.dtype), shift.to(maps.dtype))


def _fuse_for_training(conv: Any, norm: Any) -> tuple[nn.Module, nn.Module]:
    fixed = FixedNorm(norm)
    fixed.is_folded = True
    conv.__class__ = FoldedConv
    if conv.bias is None:
        # fairseq's trainer takes parameters that are None for shared parameters, and logs each
        del conv.bias
        conv.bias = None
    conv.following = (fixed,)
    return conv, fixed


class TrainedNetwork(nn.Module):
    """Image network whose input is uint8 pixels, and whose weights can be trained.

    Args:
        rows: Network from images ``[B, 3, height, width]`` to features ``[B, N, D]``.
        preprocessing: Preprocessing that gives all images the same size.
        flip: In training, mirror half of the images.
    """

    def __init__(
        self, rows: nn.Module, preprocessing: Preprocessing, *, flip: bool = False
    ) -> None:
        super().__init__()
        self.rows = rows
        self.preprocessing = preprocessing
        self.pixels_shape = preprocessing.input_shape
        self.flip = flip
        self.memory_format = torch.channels_last
        blank = torch.zeros(1, 1, int(torch.Size(self.pixels_shape).numel()), dtype=torch.uint8)
        with torch.no_grad():
            _, self.num_rows, self.dim = self.eval()(blank).shape

    def train(self, mode: bool = True) -> "TrainedNetwork":
        """Set the mode of the random flips; the layers stay in evaluation mode, without dropout."""
        super().train(mode)
        self.rows.eval()
        return self

    def forward(self, pixels: Tensor) -> Tensor:
        """Compute the features ``[B, N, D]`` of images.

        Args:
            pixels: ``[B, 1, height * width * 3]`` uint8, in the order of ``pixels_shape``.
        """
        images = pixels.view(-1, *self.pixels_shape)
        if self.training and self.flip:
            is_flipped = torch.rand(len(images), device=images.device) < 0.5
            images = torch.where(is_flipped[:, None, None, None], images.flip(2), images)
        images = self.preprocessing.normalized(images)  # [B, 3, height, width]
        dtype = next(self.rows.parameters()).dtype
        rows: Tensor = self.rows(images.to(dtype).contiguous(memory_format=self.memory_format))
        return rows


def build_trained_network(
    identity: Mapping[str, Any], weights: Optional[str], *, store: str, flip: bool = False
) -> TrainedNetwork:
    """Build the network of a feature store's features, in the state in which it computed them.

    ``identity`` has the attributes of the store; ``weights`` is the file whose SHA-256 they
    contain, or None for published and random weights.
    """
    check_is_recorded(identity, store)
    model, recorded = str(identity["extractor"]), str(identity["weights"])
    preprocessing = Preprocessing.from_json(str(identity["preprocessing"]))
    if model not in list_image_models() or not preprocessing.fixed_shape:
        raise UserError(
            f"{store}: only image networks of torchvision can be trained with --photos, on images "
            f"of one size (--resize squash, or a crop), but the features are from {model}, "
            f"{preprocessing.to_json()}."
        )
    name, seed = recorded_weights(model, recorded, weights)
    backbone = build_image_backbone(
        model,
        weights=name,
        layer=str(identity["layer"]),
        grid=bool(identity["grid"]),
        seed=seed,
        fuse=_fuse_for_training,
    )
    check_same_network(identity, backbone.weights, "", backbone.layer, weights or "")
    # batch normalisations that follow no convolution
    for module in list(backbone.network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, FixedNorm(child))
    return TrainedNetwork(backbone.network, preprocessing, flip=flip)


# the tensor names of torchvision follow this prefix in the state dict of a TrainedNetwork
LAYERS_PREFIX = "rows.layers."


def freeze_layers_before(network: TrainedNetwork, first: str) -> None:
    """Freeze the parameters before ``first``, torchvision's name of a module (``features.7``)."""
    names = [name[len(LAYERS_PREFIX) :] for name, _ in network.named_parameters()]
    # in the order of the modules' definition, which is their order in torchvision's networks
    number = next((i for i, name in enumerate(names) if f"{name}.".startswith(f"{first}.")), None)
    if number is None:
        modules = sorted({".".join(name.split(".")[:2]) for name in names})
        near = difflib.get_close_matches(first, modules, n=4, cutoff=0)
        raise UserError(
            f"--network-first-layer {first}: the image network has no such module. Near: "
            f"{', '.join(near)}."
        )
    for parameter in list(network.parameters())[:number]:
        parameter.requires_grad_(False)
