"""Networks of timm as extractors, named ``timm:NAME``.

The package's extra ``timm`` installs timm. NAME is a name of ``timm.list_models()``, optionally
with a tag of published weights: ``resnet18`` or ``resnet18.a1_in1k``. Pooled features are the input
of the classifier: the output of ``forward_head(..., pre_logits=True)``. With ``grid``, the features
are the positions of ``forward_features``: the last feature map, or the patch tokens without class
and register tokens.
"""

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Optional

from torch import Tensor, nn

from fairseq_mm.data.input_files import compute_sha256
from fairseq_mm.errors import UserError, file_errors, import_extra
from fairseq_mm.extract.backbones import Backbone
from fairseq_mm.extract.preprocessing import INTERPOLATIONS, Preprocessing
from fairseq_mm.extract.weights import (
    RANDOM,
    compute_weights_digest,
    is_file,
    load_state_dict,
    read_state_dict,
    seeded,
)

PREFIX = "timm:"
POOLED_LAYER, GRID_LAYER = "pre_logits", "forward_features"
DEFAULT = "DEFAULT"


class TimmRows(nn.Module):
    """Network of timm that returns the pooled vector, or with ``grid`` one vector per position."""

    def __init__(self, network: nn.Module, model: str, *, grid: bool) -> None:
        super().__init__()
        self.network: Any = network
        self.model = model
        self.grid = grid
        # tokens before the patches: class, distillation and register tokens
        self.num_prefix_tokens = getattr(
            network, "num_prefix_tokens", int(hasattr(network, "cls_token"))
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``[B, 3, height, width]`` to N vectors each, ``[B, N, D]`` float32."""
        features = self.network.forward_features(images)
        if self.grid:
            return self._get_grid(features, images).float()
        pooled = self.network.forward_head(features, pre_logits=True)
        if isinstance(pooled, Tensor) and pooled.dim() == 2 and len(pooled) == len(images):
            return pooled.float()[:, None]  # [B, 1, D]
        raise UserError(f"--model {self.model}: has no pooled output; use --grid.")

    def _get_grid(self, features: Any, images: Tensor) -> Tensor:
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
        raise UserError(f"--grid: {self.model} has neither a feature map nor tokens of patches.")


def build_timm(
    model: str, *, weights: Optional[str] = None, grid: bool = False, seed: int = 0
) -> Backbone:
    """Build the network ``timm:NAME[.TAG]`` without its classifier.

    ``weights`` is a state dict file, timm's tag of published weights, or ``none`` for random
    weights; by default the weights that timm publishes under the name.
    """
    timm = import_extra("timm", extra="timm", purpose=f"--model {model}")
    has_name = weights not in (None, DEFAULT, RANDOM) and not is_file(str(weights))
    name, tag = _resolve_name(timm, model, str(weights) if has_name else "")
    full_name = f"{name}.{tag}" if tag else name
    is_published = has_name or weights in (None, DEFAULT)
    problem = "cannot be built; --list-models lists models, --weights FILE needs no download"
    # the hub client raises errors of many classes if it is offline
    with file_errors(f"--model {model}", problem), _quiet(), seeded(seed):
        network = timm.create_model(full_name, pretrained=is_published).eval().float()
    recorded = f"timm:{tag or DEFAULT}" if is_published else f"{RANDOM}:{seed}"
    classifiers = network.pretrained_cfg.get("classifier") or ()
    classifiers = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
    prefixes = tuple(f"{name}." for name in classifiers)
    needed = [name for name in network.state_dict() if not name.startswith(prefixes)]
    if not is_published and weights != RANDOM:
        load_state_dict(network, read_state_dict(str(weights)), needed=needed, origin=str(weights))
        recorded = compute_sha256(str(weights))
    return Backbone(
        TimmRows(network, model, grid=grid).eval(),
        PREFIX + full_name,
        recorded,
        GRID_LAYER if grid else POOLED_LAYER,
        grid,
        _get_preprocessing(timm, network, model),
        digest=compute_weights_digest(network, needed),
        library=f"timm {timm.__version__}",
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence timm inside the context; it logs each retry of a download."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _resolve_name(timm: ModuleType, model: str, weights_tag: str) -> tuple[str, str]:
    """Return a model's architecture and tag of weights: from its name, ``weights_tag`` or timm."""
    name, _, tag = model[len(PREFIX) :].partition(".")
    # two different tags are no tag that timm has
    tag = " and ".join(filter(None, dict.fromkeys((tag, weights_tag))))
    problem = f"is neither a model nor weights of timm; --list-models '{PREFIX}*resnet*' lists both"
    with file_errors(f"--model {model}", problem):
        full_name = f"{name}.{tag}" if tag else name
        config = timm.get_pretrained_cfg(full_name, allow_unregistered=False)
    return name, (config.tag if config is not None else tag) or ""


def _get_preprocessing(timm: Any, network: nn.Module, model: str) -> Preprocessing:
    """Return the options of the transform that timm creates for a network in evaluation."""
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
    return Preprocessing(
        resize="squash" if squashes else "short",
        resize_size=resize_size,
        # the crop of an image that has its size already would change nothing
        crop="none" if squashes and resize_size == height else "center",
        size=height,
        interpolation=interpolation,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )
