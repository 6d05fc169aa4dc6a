"""Trains the image network of the features together with the model that reads the features.

With ``--photos``, the dataset has the pixels of images in place of stored features. The model
gets the network as its submodule ``image_network``, and turns pixels into features before its own
forward pass. So fairseq's optimizers, precisions, processes and checkpoints see one model.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor

from fairseq_mm.compat.loading import NETWORK_NAME, NETWORK_PREFIX, has_network
from fairseq_mm.compat.options import option
from fairseq_mm.errors import UserError

logger = logging.getLogger(__name__)


@dataclass
class PhotoOptions:
    """Options of trainings that include the image network."""

    photos: Optional[str] = option(
        None,
        "folder of the images from which features.h5 was extracted: train the "
        "image network together with the model, and read images in place of features; "
        "--preload-features keeps their pixels in memory",
    )
    image_network: Optional[str] = option(
        None,
        "with --photos: weights file of the network that extracted features.h5 "
        "(fairseq-mm extract --weights); published weights are found without this option",
        needs="photos",
    )
    network_lr_scale: float = option(
        0.1,
        "with --photos: learning rate of the image network as a multiple of --lr; with "
        "0, the network is not trained",
        least=0,
        below=math.inf,
        needs="photos",
    )
    network_first_layer: Optional[str] = option(
        None,
        "with --photos: first module of the image network that is trained, by its name "
        "in torchvision, such as features.7 of mobilenet_v2 or layer3 of resnet152; the "
        "modules before it keep their weights (default: train the whole network)",
        needs="photos",
    )
    flip_photos: bool = option(
        False, "with --photos: mirror half of the images in training", needs="photos"
    )


class _PixelReader:
    """Mixin for models and encoders that turns pixels into features before the forward pass."""

    def get_image_network(self) -> Any:
        return getattr(self, NETWORK_NAME)

    def read_pixels(self, features: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute features ``[B, N, D]`` and their padding mask ``[B, N]`` from pixels (uint8).

        If ``features`` are not uint8, they are features already, and are returned unchanged.
        """
        if features.dtype != torch.uint8:
            return features, padding_mask
        # The captions of an image follow each other in a batch, and share one pass of the network.
        is_new = (features[1:] != features[:-1]).flatten(1).any(dim=1)
        is_new = torch.cat([is_new.new_ones(1), is_new])
        features = self.get_image_network()(features[is_new])[is_new.cumsum(0) - 1]
        return features, padding_mask.new_zeros(features.shape[:2])

    def forward(self, features: Tensor, padding_mask: Tensor, *args: Any, **kwargs: Any) -> Any:
        reader: Any = super()
        return reader.forward(*self.read_pixels(features, padding_mask), *args, **kwargs)


class _PixelEncoder(_PixelReader):
    # a tuple, so that the network is a submodule of the model only
    network: tuple[Any]

    def get_image_network(self) -> Any:
        return self.network[0]


class _PixelModel(_PixelReader):
    def embed_images(self, features: Tensor, padding_mask: Tensor) -> Tensor:
        embedder: Any = super()
        embedded: Tensor = embedder.embed_images(*self.read_pixels(features, padding_mask))
        return embedded

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load a state dict with or without image network.

        Without it, as in a checkpoint that was trained on features, the network keeps the weights
        of ``--image-network``.
        """
        if not has_network(state_dict):
            own = self.get_image_network().state_dict()
            state_dict = {**state_dict, **{NETWORK_PREFIX + name: x for name, x in own.items()}}
        model: Any = super()
        return model.load_state_dict(state_dict, *args, **kwargs)


def attach_image_network(model: Any, network: Any) -> None:
    """Make a model read pixels ``[B, 1, pixels]`` uint8 through an image network.

    The model's class and the class of its encoder are replaced by subclasses. Hooks would not be
    enough: fairseq's beam search calls ``encoder.forward``, and validation calls ``embed_images``.
    """
    model.add_module(NETWORK_NAME, network)
    _add_base(model, _PixelModel)
    encoder = getattr(model, "encoder", None)
    if encoder is not None:
        encoder.network = (network,)
        _add_base(encoder, _PixelEncoder)


def _add_base(module: Any, mixin: type) -> None:
    cls = type(module)
    # the package of a module's class decides which repairs of fairseq apply to it
    module.__class__ = type(cls.__name__, (mixin, cls), {"__module__": cls.__module__})


def step_with_scaled_network(optimizer: Any, parameters: Sequence[Tensor], scale: float) -> None:
    """Make a step of an optimizer; multiply the change of ``parameters`` by ``scale``.

    A step of Adam, of SGD and of decoupled weight decay is proportional to the learning rate, so a
    fraction of the step is the step of a fraction of the learning rate. This works with every
    optimizer and precision, although their parameter groups differ.
    """
    changed = find_master_parameters(optimizer, parameters)
    before = [x.detach().clone() for x in changed]
    optimizer.step()
    with torch.no_grad():
        for x, old in zip(changed, before):
            x.copy_(torch.lerp(old, x.detach(), scale))
    if hasattr(optimizer, "fp32_params"):
        optimizer._sync_fp32_params_to_fp16()


def find_master_parameters(optimizer: Any, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that a step changes: the parameters, or their float32 copies with
    ``--fp16`` and ``--bf16``.
    """
    # FP16Optimizer alone has copies: a list of tensors, or one flat tensor for each device
    copies = getattr(optimizer, "fp32_params", None)
    own = list(optimizer.params if copies is None else optimizer.fp16_params)
    masters: dict[int, Tensor] = {}
    if isinstance(copies, dict):
        (flat,) = copies.values()
        pieces = flat.detach().split([x.numel() for x in own])
        masters = {id(x): piece.view_as(x) for x, piece in zip(own, pieces)}
    else:
        masters = {id(x): master for x, master in zip(own, own if copies is None else copies)}
    if any(id(x) not in masters for x in parameters):
        raise UserError(
            "--photos: the image network must be trained with an optimizer that keeps its "
            "parameters whole: give no --ddp-backend fully_sharded."
        )
    return [masters[id(x)] for x in parameters]
