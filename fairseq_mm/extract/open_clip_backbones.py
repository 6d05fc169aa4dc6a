"""Builds image encoders of open_clip as extractors, named ``open_clip:NAME``.

The package's extra ``clip`` installs open_clip. Pooled features are the output of ``encode_image``,
not normalised to length 1. With ``grid``, the features are the patch tokens of the last layer after
its norm, or the last feature map of a convolutional encoder, before they are projected to the space
of texts.
"""

import difflib
import os
from types import ModuleType
from typing import Any, Optional

from torch import Tensor

from fairseq_mm.data.input_files import compute_sha256
from fairseq_mm.errors import UserError, import_extra
from fairseq_mm.extract.backbones import Backbone
from fairseq_mm.extract.library_networks import (
    LibraryRows,
    cached_if_offline,
    check_preprocessing,
    compute_weights_digest,
    describe_hub_error,
    describe_library,
    quiet,
)
from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.extract.weights import RANDOM, load_state_dict, read_state_dict, seeded

PREFIX = "open_clip:"
POOLED_LAYER, GRID_LAYER = "visual", "visual.tokens"


class ClipRows(LibraryRows):
    """Network that returns the feature vectors of a CLIP model's image encoder.

    The pooled vector is the projected one.
    """

    def _get_pooled(self, images: Tensor) -> Any:
        pooled = self.network(images)
        return pooled[0] if isinstance(pooled, tuple) else pooled  # CoCa returns tokens, too

    def _get_grid(self, images: Tensor) -> Tensor:
        # a number of layers counts from the last; the norm is the one that the network itself ends
        # with, which open_clip leaves out of intermediate outputs by default
        output = self.network.forward_intermediates(
            images, indices=1, normalize_intermediates=True, intermediates_only=True
        )
        last_map = output["image_intermediates"][-1]
        return last_map.flatten(2).transpose(1, 2)  # [B, height * width, D]


def split_name(model: str) -> tuple[str, Optional[str]]:
    """Split ``open_clip:NAME[/PRETRAINED]`` into NAME and PRETRAINED.

    PRETRAINED is open_clip's tag of published weights or a weights file; None if ``model`` has only
    NAME.
    """
    name, _, pretrained = model[len(PREFIX) :].partition("/")
    return name, pretrained or None


def build_open_clip(
    model: str, *, weights: Optional[str] = None, grid: bool = False, seed: int = 0
) -> Backbone:
    """Build the image encoder of the open_clip model ``open_clip:NAME[/PRETRAINED]``.

    Args:
        model: Name of the model.
        weights: File with the weights of the whole model, open_clip's tag of published weights, or
            ``none`` for random weights; None if ``model`` has PRETRAINED.
        grid: Return one row per position of an image.
        seed: Seed of random weights.

    Raises:
        UserError: If open_clip is not installed, or has no such model or weights.
    """
    open_clip = import_extra("open_clip", extra="clip", purpose=f"--model {model}")
    name, pretrained = split_name(model)
    if pretrained and weights and weights != pretrained:
        raise UserError(f"--model {model} and --weights {weights} name two different weights.")
    source = pretrained or weights
    tags = open_clip.list_pretrained_tags_by_model(name)
    if name not in open_clip.list_models():
        near = difflib.get_close_matches(name, open_clip.list_models(), n=4, cutoff=0.4)
        raise UserError(f"--model {model}: open_clip has no such model. Near: {', '.join(near)}.")
    if source in (None, "DEFAULT"):
        raise UserError(
            f"--model {model}: has no default weights. Choose {PREFIX}{name}/TAG "
            f"({', '.join(tags) or 'none published'}), or --weights FILE."
        )
    network = _create_network(open_clip, model, name, source if source in tags else None, seed)
    # a file may lack the text encoder, which does not change the features of images
    needed = [key for key in network.state_dict() if key.startswith("visual.")]
    if source == RANDOM:
        recorded = f"{RANDOM}:{seed}"
    elif source in tags:
        recorded = f"open_clip:{source}"
    elif os.path.exists(source):
        load_state_dict(network, read_state_dict(source), needed=needed, origin=source)
        recorded = compute_sha256(source)
    else:
        raise UserError(
            f"--model {model}: {source!r} is neither a file nor weights of {name} "
            f"({', '.join(tags) or 'none published'})."
        )
    if grid and not hasattr(network.visual, "forward_intermediates"):
        raise UserError(f"--grid: the installed open_clip gives no grid for {name}; update it.")
    rows = ClipRows(network.visual, model, grid=grid).eval()
    layer = GRID_LAYER if grid else POOLED_LAYER
    return Backbone(
        rows,
        PREFIX + name,
        recorded,
        layer,
        grid,
        _get_preprocessing(open_clip, network.visual, model),
        digest=compute_weights_digest(network.float(), needed),
        library=describe_library("open_clip_torch"),
    )


def _create_network(
    open_clip: ModuleType, model: str, name: str, pretrained: Optional[str], seed: int
) -> Any:
    try:
        # open_clip warns that no pretrained weights are loaded, even if a file is loaded next
        with quiet(), cached_if_offline(), seeded(seed):
            return open_clip.create_model(name, pretrained=pretrained).eval()
    except Exception as error:  # the hub client raises errors of many classes if it is offline
        reason = describe_hub_error(error)
        if pretrained is None:
            raise UserError(f"--model {model}: cannot be built: {reason}") from None
        raise UserError(
            f"--model {model}: its weights cannot be downloaded or loaded ({reason}). Get the file "
            f"on another machine and give it: --weights FILE"
        ) from None


def _get_preprocessing(open_clip: ModuleType, visual: Any, model: str) -> Preprocessing:
    config = getattr(visual, "preprocess_cfg", {})
    size = visual.image_size[0] if isinstance(visual.image_size, tuple) else visual.image_size
    squashes = config.get("resize_mode", "shortest") == "squash"
    preprocessing = Preprocessing(
        resize="squash" if squashes else "short",
        resize_size=size,
        crop="none" if squashes else "center",
        size=size,
        interpolation=config.get("interpolation", "bicubic"),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )
    # finds images that are not square, or padded
    transforms = open_clip.transform
    transform = transforms.image_transform_v2(transforms.PreprocessCfg(**config), is_train=False)
    check_preprocessing(preprocessing, transform, f"--model {model}: its preprocessing")
    return preprocessing
