"""Builds image encoders of open_clip as extractors, named ``open_clip:NAME``.

The package's extra ``clip`` installs open_clip. Pooled features are the output of ``encode_image``,
not normalised to length 1. With ``grid``, the features are the patch tokens of the last layer after
its norm, or the last feature map of a convolutional encoder, before they are projected to the space
of texts.
"""

import difflib
import importlib
import os
from types import ModuleType
from typing import Any, NamedTuple, Optional

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
# weights that vectors of images and texts do not depend on; CoCa's decoder generates captions
_UNUSED_BY_VECTORS = ("logit_scale", "logit_bias", "text_decoder.")


class ClipRows(LibraryRows):
    """Image encoder of a CLIP model, which returns feature vectors.

    The pooled vector is the vector after the projection.
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


class LoadedClip(NamedTuple):
    """CLIP model of open_clip with its weights.

    Attributes:
        network: The model, in evaluation mode.
        name: Name of the model, such as ``ViT-B-32``.
        recorded: Text that identifies the weights, see :class:`.Backbone`.
        needed: Names of the tensors on which the used encoders depend.
    """

    network: Any
    name: str
    recorded: str
    needed: list[str]


def load_open_clip(
    model: str,
    *,
    weights: Optional[str] = None,
    seed: int = 0,
    reads_texts: bool = False,
    option: str = "--model",
) -> LoadedClip:
    """Load the open_clip model ``open_clip:NAME[/PRETRAINED]``.

    Args:
        model: Name of the model.
        weights: File with the weights of the model, open_clip's tag of published weights, or
            ``none`` for random weights; None if ``model`` has PRETRAINED.
        seed: Seed of random weights.
        reads_texts: True if the text encoder is used, too; a file may otherwise lack its weights.
        option: Option of the command line that names the model, for messages.
    """
    where = f"{option} {model}"
    open_clip = import_extra("open_clip", extra="clip", purpose=where)
    name, pretrained = split_name(model)
    if pretrained and weights and weights != pretrained:
        raise UserError(f"{where} and --weights {weights} name two different weights.")
    source = pretrained or weights
    tags = open_clip.list_pretrained_tags_by_model(name)
    if name not in open_clip.list_models():
        near = difflib.get_close_matches(name, open_clip.list_models(), n=4, cutoff=0.4)
        near = near or ["RN50", "ViT-B-32"]
        raise UserError(f"{where}: open_clip has no such model. Near: {', '.join(near)}.")
    if source in (None, "DEFAULT"):
        other = "--weights FILE" if option == "--model" else f"{PREFIX}{name}/FILE"
        raise UserError(
            f"{where}: has no default weights. Choose {PREFIX}{name}/TAG "
            f"({', '.join(tags) or 'none published'}), or {other}."
        )
    if source in tags:
        _check_activation(open_clip, where, name, str(source))
    network = _create_network(open_clip, where, name, source if source in tags else None, seed)
    needed = [
        key
        for key in network.state_dict()
        if (reads_texts and not key.startswith(_UNUSED_BY_VECTORS)) or key.startswith("visual.")
    ]
    if source == RANDOM:
        recorded = f"{RANDOM}:{seed}"
    elif source in tags:
        recorded = f"open_clip:{source}"
    elif os.path.exists(source):
        load_state_dict(network, read_state_dict(source), needed=needed, origin=source)
        recorded = compute_sha256(source)
    else:
        raise UserError(
            f"{where}: {source!r} is neither a file nor weights of {name} "
            f"({', '.join(tags) or 'none published'})."
        )
    return LoadedClip(network, name, recorded, needed)


def build_open_clip(
    model: str, *, weights: Optional[str] = None, grid: bool = False, seed: int = 0
) -> Backbone:
    """Build the image encoder of the open_clip model ``open_clip:NAME[/PRETRAINED]``.

    :func:`load_open_clip` explains ``model``, ``weights`` and ``seed``, and which errors it raises.
    With ``grid``, the network returns one feature vector per position of a grid.
    """
    # a file may lack the text encoder, which does not change the features of images
    clip = load_open_clip(model, weights=weights, seed=seed)
    if grid and not hasattr(clip.network.visual, "forward_intermediates"):
        raise UserError(
            f"--grid: the installed open_clip gives no grid for {clip.name}; update it."
        )
    return build_image_encoder(clip, model, grid=grid)


def build_image_encoder(clip: LoadedClip, model: str, *, grid: bool = False) -> Backbone:
    """Return the image encoder of a loaded model.

    Args:
        clip: The loaded CLIP model.
        model: Name of the model as the user gave it, for messages.
        grid: Return one feature vector per position of a grid.
    """
    visual = clip.network.visual
    return Backbone(
        ClipRows(visual, model, grid=grid).eval(),
        PREFIX + clip.name,
        clip.recorded,
        GRID_LAYER if grid else POOLED_LAYER,
        grid,
        _get_preprocessing(importlib.import_module("open_clip"), visual, model),
        digest=compute_weights_digest(clip.network.float(), clip.needed),
        library=describe_library("open_clip_torch"),
    )


def _check_activation(open_clip: ModuleType, where: str, name: str, tag: str) -> None:
    """Raise UserError if weights were trained with another activation function than the model has.

    open_clip 3 only warns of this, and computes wrong vectors.
    """
    weights = open_clip.get_pretrained_cfg(name, tag) or {}
    config = open_clip.get_model_config(name) or {}
    variant = f"{name}-quickgelu"
    is_other = weights.get("quick_gelu") and not config.get("quick_gelu")
    if is_other and variant in open_clip.list_models():
        raise UserError(
            f"{where}: the weights {tag} were trained with QuickGELU, which {name} does not have: "
            f"choose {PREFIX}{variant}/{tag}."
        )


def _create_network(
    open_clip: ModuleType, where: str, name: str, pretrained: Optional[str], seed: int
) -> Any:
    try:
        # open_clip warns that no pretrained weights are loaded, even if a file is loaded next
        with quiet(), cached_if_offline(), seeded(seed):
            return open_clip.create_model(name, pretrained=pretrained).eval()
    except Exception as error:  # the hub client raises errors of many classes if it is offline
        reason = describe_hub_error(error)
        if pretrained is None:
            raise UserError(f"{where}: cannot be built: {reason}") from None
        other = "--weights FILE" if where.startswith("--model ") else f"{PREFIX}{name}/FILE"
        raise UserError(
            f"{where}: its weights cannot be downloaded or loaded ({reason}). Get the file on "
            f"another machine and give it: {other}"
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
