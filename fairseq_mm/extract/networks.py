"""Registry of the networks that extract features: their names, their inputs and their builders."""

import difflib
import fnmatch
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

import torch

from fairseq_mm.compat import float32_by_default
from fairseq_mm.compat.fairseq import OF_TORCHVISION, deferred
from fairseq_mm.errors import UserError, import_extra
from fairseq_mm.extract.backbones import (
    POOLED,
    Backbone,
    build_clip_backbone,
    build_image_backbone,
    cut_after,
    list_clip_models,
    list_image_models,
)
from fairseq_mm.extract.timm_backbones import GRID_LAYER, POOLED_LAYER, build_timm
from fairseq_mm.extract.timm_backbones import PREFIX as TIMM

with deferred(OF_TORCHVISION):
    import torchvision


class Family(NamedTuple):
    """Networks that one function builds from a name, ``weights``, ``seed`` and those of ``options``
    that are options of layers; they read ``images`` or ``videos``, and ``has`` tests a name."""

    reads: str
    has: Callable[[str], bool]
    options: tuple[str, ...]
    build: Callable[..., Backbone]


# first the one that is known by its prefix: listing the names of the others imports torchvision
FAMILIES = (
    Family("images", lambda model: model.startswith(TIMM), ("grid",), build_timm),
    Family(
        "images",
        lambda model: model in list_image_models(),
        ("grid", "layer"),
        build_image_backbone,
    ),
    Family(
        "videos",
        lambda model: model in list_clip_models(),
        ("frames", "stride", "fps"),
        build_clip_backbone,
    ),
)


def find_family(model: str) -> Family:
    for family in FAMILIES:
        if family.has(model):
            return family
    names = [*list_image_models(), *list_clip_models()]
    near = difflib.get_close_matches(model, names, n=4, cutoff=0.5) or ["resnet50", "vgg16"]
    raise UserError(
        f"--model {model}: torchvision {torchvision.__version__} has no such model. Near: "
        f"{', '.join(near)}. (Networks of timm: {TIMM}NAME.)"
    )


def list_models(pattern: str) -> list[str]:
    """Return the names of models that match a shell pattern, such as ``timm:vit_small*``; without
    wildcards, it is a part of a name."""
    names = []
    if pattern.startswith(TIMM):
        timm = import_extra("timm", extra="timm", purpose=f"--list-models {pattern}")
        published = timm.list_pretrained()
        names = [TIMM + name for name in dict.fromkeys([*timm.list_models(), *published])]
    else:
        names = [*list_image_models(), *list_clip_models()]
    if not set(pattern) & set("*?["):
        library, colon, part = pattern.rpartition(":")
        pattern = f"{library}{colon}*{part}*"
    return sorted(name for name in names if fnmatch.fnmatchcase(name, pattern))


@float32_by_default
def build_backbone(
    model: str,
    *,
    weights: Optional[str] = None,
    layer: Optional[str] = None,
    grid: bool = False,
    seed: int = 0,
) -> Backbone:
    """Build a network of any family.

    Args:
        model: Name of a model of torchvision (for images or videos), ``resnext101_3d``,
            or ``timm:NAME``.
        weights: State dict file, name of published weights (downloaded once), or ``none`` for
            random weights. None for the default weights of torchvision and timm.
        layer: Name of a layer of a torchvision network for images; None for the model's default
            layer.
        grid: Return one feature vector per position of a grid.
        seed: Seed of random weights.
    """
    layers: dict[str, Any] = {"layer": layer, "grid": grid}
    family = check_options(model, layers)
    choices = {name: x for name, x in layers.items() if name in family.options}
    return family.build(model, weights=weights, seed=seed, **choices)


def check_layer(model: str, layer: str) -> None:
    """Raise UserError if a network that this package builds does not have the layer."""
    known: tuple[str, ...] = ()
    if model.startswith(TIMM):
        known = (POOLED_LAYER, GRID_LAYER)
    elif model in list_clip_models():
        known = (POOLED,)
    elif model in list_image_models():
        with torch.device("meta"):  # without weights in memory
            cut_after(vars(torchvision.models)[model](weights=None), model, layer)
    if known and layer not in known:
        raise UserError(f"--layer {layer}: must be {' or '.join(known)} for {model}.")


def check_options(model: str, options: Mapping[str, object]) -> Family:
    """Return the family of a network. Raise UserError if an option is set that it does not have."""
    family = find_family(model)
    for name, value in options.items():
        if value and name not in family.options:
            name = {"frames": "frames-per-clip"}.get(name, name)
            raise UserError(f"--{name}: is no option of {model}, which reads {family.reads}.")
    return family
