"""Registry of the networks that extract features: their names, their inputs and their builders."""

import difflib
import fnmatch
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

from fairseq_mm.compat import float32_by_default
from fairseq_mm.compat.deferred_imports import OF_TORCHVISION, deferred
from fairseq_mm.errors import UserError, import_extra
from fairseq_mm.extract.backbones import (
    Backbone,
    build_clip_backbone,
    build_image_backbone,
    list_clip_models,
    list_image_models,
)
from fairseq_mm.extract.hf_backbones import PREFIX as HF
from fairseq_mm.extract.hf_backbones import build_hf
from fairseq_mm.extract.open_clip_backbones import PREFIX as OPEN_CLIP
from fairseq_mm.extract.open_clip_backbones import build_open_clip
from fairseq_mm.extract.timm_backbones import PREFIX as TIMM
from fairseq_mm.extract.timm_backbones import build_timm

with deferred(OF_TORCHVISION):
    import torchvision


class Family(NamedTuple):
    """Family of networks that one function builds, such as the networks of timm.

    Attributes:
        reads: Input of the networks: ``images``, or ``videos``, which are cut into clips.
        has: Function that returns True if the family has a model with a given name.
        choices: Keyword arguments of ``build`` that not all families have, such as ``grid``.
        build: Function that builds a model from its name and the keyword arguments ``weights``,
            ``seed`` and ``choices``.
    """

    reads: str
    has: Callable[[str], bool]
    choices: tuple[str, ...]
    build: Callable[..., Backbone]


# first those that are known by their prefix: listing the names of the others imports torchvision
FAMILIES = (
    Family("images", lambda model: model.startswith(OPEN_CLIP), ("grid",), build_open_clip),
    Family("images", lambda model: model.startswith(TIMM), ("grid",), build_timm),
    Family("images", lambda model: model.startswith(HF), ("grid", "config"), build_hf),
    Family(
        "images",
        lambda model: model in list_image_models(),
        ("grid", "layer"),
        build_image_backbone,
    ),
    Family("videos", lambda model: model in list_clip_models(), (), build_clip_backbone),
)


PREFIXES = (TIMM, HF, OPEN_CLIP)
SPELLINGS = ("timm:NAME", "hf:NAME", "open_clip:NAME[/PRETRAINED]")


def find_family(model: str) -> Family:
    """Return the family of a model.

    Raise UserError if no family has the model; the message has similar names.
    """
    for family in FAMILIES:
        if family.has(model):
            return family
    library, colon, name = model.partition(":")
    if colon:
        near = difflib.get_close_matches(f"{library}:", PREFIXES, n=1, cutoff=0.3)
        hint = f" Did you mean {near[0]}{name}?" if near else ""
        raise UserError(
            f"--model {model}: there is no library {library!r}, but {', '.join(SPELLINGS)}.{hint}"
        )
    names = [*list_image_models(), *list_clip_models()]
    near = difflib.get_close_matches(model, names, n=4, cutoff=0.5) or ["resnet50", "vgg16"]
    raise UserError(
        f"--model {model}: torchvision {torchvision.__version__} has no such model. Near: "
        f"{', '.join(near)}. (Other libraries: {', '.join(SPELLINGS)}.)"
    )


def list_models(pattern: str) -> list[str]:
    """Return the names of models, as ``--model`` takes them, that match a pattern.

    Args:
        pattern: Shell pattern, such as ``*resnet*`` or ``timm:vit_small*``; without wildcards, part
            of a name. Names of timm and open_clip match only if the pattern begins with the prefix
            of the library.
    """
    names = []
    if pattern.startswith(TIMM):
        timm = import_extra("timm", extra="timm", purpose=f"--list-models {pattern}")
        published = timm.list_pretrained()
        names = [TIMM + name for name in dict.fromkeys([*timm.list_models(), *published])]
    elif pattern.startswith(OPEN_CLIP):
        open_clip = import_extra("open_clip", extra="clip", purpose=f"--list-models {pattern}")
        pairs = open_clip.list_pretrained()
        names = [OPEN_CLIP + name for name in open_clip.list_models()]
        names += [f"{OPEN_CLIP}{name}/{tag}" for name, tag in pairs]
    elif pattern.startswith(HF):
        raise UserError(
            f"--list-models {pattern}: the models of Hugging Face are on its hub "
            "(https://huggingface.co/models), and in your folders: hf:FOLDER."
        )
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
    config: str = "",
) -> Backbone:
    """Build a network of any family.

    Args:
        model: Name of a model of torchvision (for images or videos), ``resnext101_3d``,
            ``timm:NAME``, ``hf:NAME``, or ``open_clip:NAME[/PRETRAINED]``.
        weights: State dict file, name of published weights (downloaded once), or ``none`` for
            random weights. None for the default weights of torchvision and timm, or for the weights
            that the name of an ``hf:`` or ``open_clip:`` model includes.
        layer: Name of a layer of a torchvision network for images; None for the model's default
            layer.
        grid: Return one feature vector per position of a grid.
        seed: Seed of random weights.
        config: Config of a network of transformers, as a feature store records it; empty to read
            the config of the model's folder.
    """
    family = find_family(model)
    layers: dict[str, Any] = {"layer": layer, "grid": grid}
    if family.reads == "videos":
        refuse_options(model, "images", {f"--{name}": value for name, value in layers.items()})
    elif layer is not None and "layer" not in family.choices:
        raise UserError(f"--layer: is for models of torchvision; {model} has --grid or not.")
    options = {**layers, "config": config}
    choices = {name: options[name] for name in family.choices}
    return family.build(model, weights=weights, seed=seed, **choices)


def refuse_options(model: str, kind: str, options: Mapping[str, object]) -> None:
    """Raise UserError if an option is set that the model does not have.

    Args:
        model: Name of the model.
        kind: Kind of models that have the options: ``images`` or ``videos``, after their inputs.
        options: Dict from the flag of an option to its value.
    """
    other = "images" if kind == "videos" else "videos"
    for flag, value in options.items():
        if value:
            raise UserError(f"{flag}: is for models of {kind}, but {model} reads {other}.")
