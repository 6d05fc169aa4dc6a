"""Networks of timm as extractors, named ``timm:NAME``.

The package's extra ``timm`` installs timm. NAME is a name of ``timm.list_models()``, optionally
with a tag of published weights: ``resnet18`` or ``resnet18.a1_in1k``. Pooled features are the input
of the classifier: the output of ``forward_head(..., pre_logits=True)``. With ``grid``, the features
are the positions of ``forward_features``: the last feature map, or the patch tokens without class
and register tokens.
"""

import difflib
import math
from types import ModuleType
from typing import Any, Optional

from torch import Tensor, nn

from fairseq_mm.data.input_files import compute_sha256
from fairseq_mm.errors import UserError, first_line, import_extra
from fairseq_mm.extract.backbones import Backbone
from fairseq_mm.extract.library_networks import (
    LibraryRows,
    cached_if_offline,
    check_preprocessing,
    compute_weights_digest,
    describe_hub_error,
    describe_library,
    fold_norms,
    quiet,
)
from fairseq_mm.extract.preprocessing import INTERPOLATIONS, Preprocessing
from fairseq_mm.extract.weights import RANDOM, is_file, load_state_dict, read_state_dict, seeded

PREFIX = "timm:"
POOLED_LAYER, GRID_LAYER = "pre_logits", "forward_features"
DEFAULT = "DEFAULT"


class TimmRows(LibraryRows):
    """Network of timm that returns feature vectors."""

    def __init__(self, network: nn.Module, model: str, *, grid: bool) -> None:
        super().__init__(network, model, grid=grid)
        # tokens before the patches: class, distillation and register tokens
        self.num_prefix_tokens = getattr(
            network, "num_prefix_tokens", int(hasattr(network, "cls_token"))
        )

    def _get_pooled(self, images: Tensor) -> Any:
        return self.network.forward_head(self.network.forward_features(images), pre_logits=True)

    def _get_grid(self, images: Tensor) -> Optional[Tensor]:
        features = self.network.forward_features(images)
        num_dims = features.dim() if isinstance(features, Tensor) else 0
        if num_dims == 4:
            is_channels_last = features.shape[3] == self.network.num_features != features.shape[1]
            if is_channels_last:
                return features.flatten(1, 2)  # [B, height * width, D]
            return features.flatten(2).transpose(1, 2)
        if num_dims == 3:
            tokens = features[:, self.num_prefix_tokens :]  # [B, patches, D]
            height, width = images.shape[2:]
            num_tokens = tokens.shape[1]  # PiT returns its class token only
            is_square = math.isqrt(num_tokens) ** 2 == num_tokens
            if num_tokens and (height != width or is_square):
                return tokens
        return None


def build_timm(
    model: str, *, weights: Optional[str] = None, grid: bool = False, seed: int = 0
) -> Backbone:
    """Build the network ``timm:NAME[.TAG]`` without its classifier.

    Args:
        model: Name of the model.
        weights: State dict file, timm's tag of published weights, or ``none`` for random weights;
            None for the weights that timm publishes under the name.
        grid: Return one feature vector per position of a grid.
        seed: Seed of random weights.
    """
    timm = import_extra("timm", extra="timm", purpose=f"--model {model}")
    has_name = weights not in (None, DEFAULT, RANDOM) and not is_file(str(weights))
    name, tag = _resolve_name(timm, model, str(weights) if has_name else "")
    full_name = f"{name}.{tag}" if tag else name
    if has_name or weights in (None, DEFAULT):
        network = _create_published(timm, model, full_name)
        recorded = f"timm:{tag or DEFAULT}"
    else:
        with quiet(), seeded(seed):
            network = _create(timm, model, full_name, pretrained=False)
        recorded = f"{RANDOM}:{seed}"
    needed = _get_needed(network)
    if weights != RANDOM and not recorded.startswith("timm:"):
        load_state_dict(network, read_state_dict(str(weights)), needed=needed, origin=str(weights))
        recorded = compute_sha256(str(weights))
    digest = compute_weights_digest(network, needed)
    preprocessing = _get_preprocessing(timm, network, model)
    rows = TimmRows(network, model, grid=grid).eval()
    fold_norms(rows, side=preprocessing.size)  # after the digest is computed, of the given weights
    return Backbone(
        rows,
        PREFIX + full_name,
        recorded,
        GRID_LAYER if grid else POOLED_LAYER,
        grid,
        preprocessing,
        digest=digest,
        library=describe_library("timm"),
    )


def _resolve_name(timm: ModuleType, model: str, weights_tag: str) -> tuple[str, str]:
    """Return the architecture and the weights tag of a model.

    ``weights_tag`` is the tag from ``--weights``; if it is empty and ``model`` has no tag, the
    result is timm's default tag.
    """
    name, _, tag = model[len(PREFIX) :].partition(".")
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=4, cutoff=0.4)
        hint = f" Near: {', '.join(near)}." if near else ""
        raise UserError(
            f"--model {model}: {describe_library('timm')} has no such model.{hint} (fairseq-mm "
            f"extract --list-models '{PREFIX}*resnet*' lists models.)"
        )
    if tag and weights_tag and tag != weights_tag:
        raise UserError(f"--model {model} and --weights {weights_tag} name two different weights.")
    tag = tag or weights_tag
    try:
        config = timm.get_pretrained_cfg(f"{name}.{tag}" if tag else name, allow_unregistered=False)
    except (RuntimeError, KeyError):
        published = [full.partition(".")[2] for full in timm.list_pretrained(f"{name}.*")]
        option = f"--weights {weights_tag}" if weights_tag else f"--model {model}"
        raise UserError(
            f"{option}: {tag!r} is neither a file nor a tag of timm's weights for {name} "
            f"({', '.join(published) or 'none published'}), nor {RANDOM}."
        ) from None
    return name, (config.tag if config is not None else tag) or ""


def _create(timm: ModuleType, model: str, full_name: str, *, pretrained: bool) -> Any:
    try:
        return timm.create_model(full_name, pretrained=pretrained).eval().float()
    except Exception as error:  # the hub client raises errors of many classes if it is offline
        if not pretrained:
            raise UserError(f"--model {model}: cannot be built: {first_line(error)}") from None
        raise UserError(
            f"--model {model}: its weights cannot be downloaded or loaded "
            f"({describe_hub_error(error)}). Get the file on another machine and give it: "
            "--weights FILE"
        ) from None


def _create_published(timm: ModuleType, model: str, full_name: str) -> Any:
    if not timm.is_model_pretrained(full_name):
        raise UserError(
            f"--model {model}: timm publishes no weights for it. Give --weights FILE, or {RANDOM} "
            "for random ones."
        )
    with quiet(), cached_if_offline():
        return _create(timm, model, full_name, pretrained=True)


def _get_needed(network: Any) -> list[str]:
    """Return the names of a network's tensors, without the tensors of its classifiers."""
    classifiers = network.pretrained_cfg.get("classifier") or ()
    classifiers = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
    prefixes = tuple(f"{name}." for name in classifiers)
    return [name for name in network.state_dict() if not name.startswith(prefixes)]


def _get_preprocessing(timm: Any, network: nn.Module, model: str) -> Preprocessing:
    config = timm.data.resolve_model_data_config(network)
    channels, height, width = config["input_size"]
    interpolation, mode = config["interpolation"], config["crop_mode"]
    if (
        channels != 3
        or height != width
        or mode not in ("center", "squash")
        or interpolation not in INTERPOLATIONS
    ):
        raise UserError(
            f"--model {model}: its preprocessing cannot be recorded in a feature store "
            f"({channels} x {height} x {width}, crop {mode}, interpolation {interpolation})."
        )
    resize_size = math.floor(height / config["crop_pct"])
    squashes = mode == "squash"
    preprocessing = Preprocessing(
        resize="squash" if squashes else "short",
        resize_size=resize_size,
        # the crop of an image that has its size already would change nothing
        crop="none" if squashes and resize_size == height else "center",
        size=height,
        interpolation=interpolation,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )
    transform = timm.data.create_transform(**config, is_training=False)
    check_preprocessing(preprocessing, transform, f"--model {model}: its preprocessing")
    return preprocessing
