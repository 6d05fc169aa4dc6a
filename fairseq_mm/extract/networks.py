"""Registry of the networks that extract features: their names, their inputs and their builders."""

import difflib
from collections.abc import Callable, Mapping
from typing import NamedTuple, Optional

from fairseq_mm.compat import float32_by_default
from fairseq_mm.compat.deferred_imports import OF_TORCHVISION, deferred
from fairseq_mm.errors import UserError
from fairseq_mm.extract.backbones import (
    Backbone,
    build_clip_backbone,
    build_image_backbone,
    list_clip_models,
    list_image_models,
)
from fairseq_mm.extract.open_clip_backbones import PREFIX, build_open_clip

with deferred(OF_TORCHVISION):
    import torchvision


class Family(NamedTuple):
    """Family of networks that are built by one function.

    Attributes:
        reads: Files that the networks are run on: ``images``, or ``videos``, cut into clips.
        has: Function that tells whether the family has a model with a given name.
        choices: Names of the options of ``build`` that choose the layer.
        build: Function that builds a model from its name and the keyword arguments ``weights``,
            ``seed`` and those in ``choices``.
    """

    reads: str
    has: Callable[[str], bool]
    choices: tuple[str, ...]
    build: Callable[..., Backbone]


# open_clip first, which is known by its prefix: listing the names of the others imports torchvision
FAMILIES = (
    Family("images", lambda model: model.startswith(PREFIX), ("grid",), build_open_clip),
    Family("videos", lambda model: model in list_clip_models(), (), build_clip_backbone),
    Family(
        "images",
        lambda model: model in list_image_models(),
        ("grid", "layer"),
        build_image_backbone,
    ),
)


def find_family(model: str) -> Family:
    """Return the family of a model.

    Raise UserError if no family has the model; the message has similar names.
    """
    for family in FAMILIES:
        if family.has(model):
            return family
    names = [*list_image_models(), *list_clip_models()]
    near = difflib.get_close_matches(model, names, n=4, cutoff=0.5) or ["resnet50", "vgg16"]
    raise UserError(
        f"--model {model}: torchvision {torchvision.__version__} has no such model. Near: "
        f"{', '.join(near)}. (open_clip:NAME for the models of open_clip.)"
    )


@float32_by_default()
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
        model: Name of a model of torchvision (for images or videos), ``resnext101_3d``, or
            ``open_clip:NAME[/PRETRAINED]``.
        weights: State dict file, name of published weights (downloaded once), or ``none`` for
            random weights; None for torchvision's default weights.
        layer: Name of a layer of a torchvision network for images; None for the model's default
            layer.
        grid: Return one row per position of an image.
        seed: Seed of random weights.

    Raises:
        UserError: If the model, the weights or the layer do not exist or do not fit together, or if
            ``layer`` or ``grid`` is given for a model that does not have this option.
    """
    family = find_family(model)
    layers = {"layer": layer, "grid": grid}
    if family.reads == "videos":
        refuse_options(model, "images", {f"--{name}": value for name, value in layers.items()})
    elif layer is not None and "layer" not in family.choices:
        raise UserError("--layer: is for models of torchvision; open_clip has --grid or not.")
    choices = {name: layers[name] for name in family.choices}
    return family.build(model, weights=weights, seed=seed, **choices)


def refuse_options(model: str, kind: str, options: Mapping[str, object]) -> None:
    """Raise UserError if an option is set that the model does not have.

    Args:
        model: Name of the model.
        kind: ``images`` or ``videos``: only models that read files of this kind have the options.
        options: Dict from the flag of an option to its value.
    """
    other = "images" if kind == "videos" else "videos"
    for flag, value in options.items():
        if value:
            raise UserError(f"{flag}: is for models of {kind}, but {model} reads {other}.")
