"""Vision models of Hugging Face's transformers as extractors, named ``hf:NAME``.

The package's extra ``hf`` installs transformers. NAME is a folder that ``save_pretrained`` wrote,
or the name of a model on the Hugging Face hub, optionally with a revision:
``hf:facebook/dinov2-small@main``. The layer of the pooled features depends on the model:

==================  ================================================================================
layer               features
==================  ================================================================================
image_features      output of ``get_image_features`` of a model of images and texts, such as CLIP
                    and SigLIP; not normalised to length 1
pooler_output       output ``pooler_output`` of another model
class_token         first token of ``last_hidden_state``, for models whose weights have no pooler,
                    such as ViT classifiers, which classify by this token
last_hidden_state   with ``grid``: the last feature map, or the tokens of the patches without class
                    and register tokens, as the image encoder returns them
==================  ================================================================================

No code of a folder or of the hub is run. The config is recorded with the features, so that the
weights file is enough to build the network again.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from fairseq_mm.data.input_files import compute_sha256, parse_object
from fairseq_mm.errors import UserError, import_extra
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
from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.extract.weights import (
    RANDOM,
    check_finite,
    is_file,
    name_some,
    read_state_dict,
    seeded,
)

PREFIX = "hf:"
IMAGE_FEATURES, POOLED, CLASS_TOKEN = "image_features", "pooler_output", "class_token"
GRID_LAYER = "last_hidden_state"
CONFIG_FILE = "config.json"
WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")
# parts of models of images and texts that features of images do not depend on
_TEXT_PARTS = ("text_model", "text_projection", "logit_scale", "logit_bias")
# settings of a config that name code, packages or files, or that do not change the network
_DROPPED_SETTINGS = re.compile(
    r"_.*|auto_map|.*quantization.*|.*kernel_config|(attn|experts)_implementation|(torch_)?dtype"
    r"|id2label|label2id|architectures|transformers_version"
)
# numbers of layers or stages, and how many a config in a store or a checkpoint may have
_LAYERS = re.compile(r".*(layers|depths|depth|stages|hidden_sizes).*")
_MAX_LAYERS = 1000
# Pillow's numbers of interpolations, which image processors save
_INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
# models have a class token, at most a distillation token, and 4 or 8 register tokens
_MAX_PREFIX_TOKENS = 16


class HfRows(LibraryRows):
    """Network that returns the feature vectors of a vision model of transformers.

    Args:
        network: Model of transformers, with or without a text encoder.
        model: Name of the model, for messages.
        layer: Name of the layer, see the table in the module's docstring.
    """

    def __init__(self, network: nn.Module, model: str, layer: str) -> None:
        super().__init__(network, model, grid=layer == GRID_LAYER)
        self.layer = layer
        config: Any = network.config
        config = getattr(config, "vision_config", None) or config
        patch_size = getattr(config, "patch_size", None)
        sides = patch_size if isinstance(patch_size, (tuple, list)) else (patch_size, patch_size)
        self.patch_height, self.patch_width = (side or 0 for side in sides)

    def _encode(self, images: Tensor) -> Any:
        return getattr(self.network, "vision_model", self.network)(pixel_values=images)

    def _get_pooled(self, images: Tensor) -> Any:
        if self.layer == CLASS_TOKEN:
            hidden = self._encode(images).last_hidden_state
            return hidden[:, 0] if self._count_prefix_tokens(hidden, images) else None
        if self.layer == IMAGE_FEATURES:
            output = self.network.get_image_features(pixel_values=images)
            pooled = getattr(output, "pooler_output", output)  # a tensor before transformers 5
        else:
            pooled = getattr(self._encode(images), "pooler_output", None)
        # ResNet returns a feature map of one position
        return pooled.flatten(1) if isinstance(pooled, Tensor) else pooled

    def _get_grid(self, images: Tensor) -> Optional[Tensor]:
        hidden: Any = getattr(self._encode(images), "last_hidden_state", None)
        if isinstance(hidden, Tensor) and hidden.dim() == 4:  # [B, D, height, width]
            return hidden.flatten(2).transpose(1, 2)
        num_prefix_tokens = self._count_prefix_tokens(hidden, images)
        return None if num_prefix_tokens is None else hidden[:, num_prefix_tokens:]

    def _count_prefix_tokens(self, hidden: Any, images: Tensor) -> Optional[int]:
        """Return the number of tokens before the patches; None if there are no patches."""
        if not isinstance(hidden, Tensor) or hidden.dim() != 3 or not self.patch_height:
            return None
        height, width = images.shape[2:]
        num_patches = (height // self.patch_height) * (width // self.patch_width)
        num_tokens = hidden.shape[1]
        if 0 <= num_tokens - num_patches <= _MAX_PREFIX_TOKENS:
            return num_tokens - num_patches
        # Swin and others merge k x k patches from stage to stage, and have no class token
        merged = num_patches / max(num_tokens, 1)
        side = round(merged**0.5)
        return 0 if side > 1 and side**2 == merged else None


class _Source(NamedTuple):
    """Place of a model's files.

    Attributes:
        model: Name of the model as the user gave it, for messages.
        path: Folder, or name of a model on the hub.
        revision: Revision of the model on the hub; None for a folder, or the newest revision.
        is_folder: True if ``path`` is a folder.
    """

    model: str
    path: str
    revision: Optional[str]
    is_folder: bool


class _Loaded(NamedTuple):
    """Model of transformers with its weights.

    Attributes:
        network: The model.
        recorded: Text that identifies the weights, see :class:`.Backbone`.
        missing: Names of the model's tensors that the weights file lacks.
    """

    network: Any
    recorded: str
    missing: list[str]


def build_hf(
    model: str,
    *,
    weights: Optional[str] = None,
    grid: bool = False,
    seed: int = 0,
    config: str = "",
) -> Backbone:
    """Build the vision model ``hf:FOLDER`` or ``hf:NAME[@REVISION]``.

    Args:
        model: Name of the model.
        weights: State dict file, or ``none`` for random weights; None for the weights of the
            folder, or of the hub.
        grid: Return one feature vector per position of a grid.
        seed: Seed of random weights.
        config: Config that a feature store records, which replaces the model's folder; ``weights``
            is then required, and the preprocessing of the result has default values. If empty, the
            model's own config and preprocessing are read.
    """
    transformers = import_extra("transformers", extra="hf", purpose=f"--model {model}")
    source = _find_source(model)
    with _errors_of(source), quiet_transformers(transformers):
        settings, commit = _read_config(transformers, source, config)
        if weights == commit:  # a checkpoint records the commit as the weights, too
            weights = None
        loaded = _load(transformers, source, settings, commit, weights, seed)
        preprocessing = Preprocessing()
        if not config:
            preprocessing = _get_preprocessing(transformers, source, commit)
    network, missing = loaded.network, loaded.missing
    for part in _TEXT_PARTS if hasattr(network, "vision_model") else ():
        if hasattr(network, part):
            delattr(network, part)
    needed = list(network.state_dict())
    layer = IMAGE_FEATURES if hasattr(network, "get_image_features") else POOLED
    if any("pooler." in name for name in missing) and layer == POOLED:
        layer = CLASS_TOKEN
        # a pooler without weights has random ones
        needed = [name for name in needed if "pooler." not in name]
    origin = weights or f"--model {model}"
    lacking = [name for name in missing if name in needed]
    if lacking:
        raise UserError(f"{origin}: does not fit the model: it lacks {name_some(lacking)}.")
    check_finite(network, needed=needed, origin=origin)
    rows = HfRows(network, model, GRID_LAYER if grid else layer).eval()
    digest = compute_weights_digest(network, needed)
    side = getattr(network.config, "image_size", None)
    # after the digest is computed, which is of the given weights
    fold_norms(rows, side=side if isinstance(side, int) else 224)
    name = os.path.basename(os.path.abspath(source.path)) if source.is_folder else source.path
    if not source.is_folder and commit:
        name = f"{name}@{commit}"
    return Backbone(
        rows,
        PREFIX + name,
        loaded.recorded,
        rows.layer,
        grid,
        preprocessing,
        digest=digest,
        library=describe_library("transformers"),
        config=json.dumps(settings, sort_keys=True),
    )


def _find_source(model: str) -> _Source:
    path = model[len(PREFIX) :]
    if os.path.isdir(path):
        return _Source(model, path, None, True)
    name, revision = split_hub_name(path, where=f"--model {model}")
    return _Source(model, name, revision, False)


def split_hub_name(model: str, *, where: str) -> tuple[str, Optional[str]]:
    """Split ``OWNER/NAME[@REVISION]`` into the name of a model on the hub and its revision.

    Args:
        model: Name that the user gave, which is not the path of a folder.
        where: Option and its value, for the message.
    """
    name, _, revision = model.partition("@")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        raise UserError(
            f"{where}: {model!r} is neither a folder nor the name of a model on the hub, "
            "OWNER/NAME[@REVISION]."
        )
    return name, revision or None


@contextlib.contextmanager
def _errors_of(source: _Source) -> Iterator[None]:
    """Convert exceptions of transformers inside the context to errors of one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the library checks a config only where it reads a setting
        where, remedy = "the folder", ""
        if not source.is_folder:
            where = "the Hugging Face hub"
            remedy = " (Without network: save the model on another machine with save_pretrained, "
            remedy += f"and give its folder: {PREFIX}FOLDER.)"
        reason = describe_hub_error(error)
        raise UserError(
            f"--model {source.model}: cannot be loaded from {where}: {reason}.{remedy}"
        ) from None


@contextlib.contextmanager
def quiet_transformers(transformers: ModuleType) -> Iterator[None]:
    """Silence log, warnings and progress bars of transformers inside the context."""
    bars = transformers.utils.logging
    had_bars = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        with quiet(), cached_if_offline():
            yield
    finally:
        if had_bars:
            bars.enable_progress_bar()


def _read_config(
    transformers: ModuleType, source: _Source, recorded: str
) -> tuple[dict[str, Any], str]:
    """Read the config of a model.

    Args:
        transformers: The package.
        source: Place of the model's files.
        recorded: Config of a feature store, which is returned if it is not empty.

    Returns:
        settings: Config, without settings that name code.
        commit: Commit of the model on the hub; empty for a folder. With a recorded config, the
            revision in the name of the model.
    """
    if recorded:
        settings = parse_object(recorded, "the recorded config of the network")
        _check_layers(settings)
        return _drop_settings(settings), source.revision or ""
    if source.is_folder:
        path = os.path.join(source.path, CONFIG_FILE)
        if not os.path.isfile(path):
            raise UserError(
                f"--model {source.model}: the folder has no {CONFIG_FILE}, so it is no model of "
                "transformers (written by save_pretrained)."
            )
    commit = ""
    if not source.is_folder:
        from huggingface_hub import hf_hub_download  # installed with transformers

        path = hf_hub_download(source.path, CONFIG_FILE, revision=source.revision)
        commit = os.path.basename(os.path.dirname(path))  # .../snapshots/COMMIT/config.json
    config = transformers.AutoConfig.from_pretrained(
        source.path, revision=commit or "main", trust_remote_code=False
    )
    return _drop_settings(json.loads(config.to_json_string(use_diff=False))), commit


def _check_layers(settings: Mapping[str, Any]) -> None:
    """Raise UserError if a config from elsewhere has more layers than memory would hold."""
    for name, value in settings.items():
        if isinstance(value, dict):
            _check_layers(value)
        elif _LAYERS.fullmatch(name):
            # a list has a number for each stage
            numbers = [len(value), *value] if isinstance(value, list) else [value]
            is_width = "sizes" in name
            for number in numbers[:1] if is_width else numbers:
                if isinstance(number, (int, float)) and number > _MAX_LAYERS:
                    raise UserError(
                        f"the recorded config of the network: {name} must be at most "
                        f"{_MAX_LAYERS}, but is {number}."
                    )


def _drop_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _drop_settings(value) if isinstance(value, dict) else value
        for name, value in settings.items()
        if not _DROPPED_SETTINGS.fullmatch(name)
    }


def _load(
    transformers: ModuleType,
    source: _Source,
    settings: dict[str, Any],
    commit: str,
    weights: Optional[str],
    seed: int,
) -> _Loaded:
    """Build a model and load its weights.

    Args:
        transformers: The package.
        source: Place of the model's files.
        settings: Config of the model.
        commit: Commit of the model on the hub; empty for a folder.
        weights: State dict file, ``none`` for random weights, or None for the model's own weights.
        seed: Seed of random weights.
    """
    # a copy: for_model takes its arguments apart
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps(settings)))
    with torch.device("meta"):  # without memory
        empty = transformers.AutoModel.from_config(config)
    cls, num_weights = type(empty), sum(weight.numel() for weight in empty.parameters())
    has_images = cls.main_input_name == "pixel_values" or hasattr(cls, "get_image_features")
    if not has_images:
        raise UserError(f"--model {source.model}: reads {cls.main_input_name}, not images.")
    if weights == RANDOM:
        with seeded(seed):
            network = transformers.AutoModel.from_config(config)
        return _Loaded(network.eval().float(), f"{RANDOM}:{seed}", [])
    if weights is not None and not is_file(weights):
        raise UserError(
            f"--weights {weights}: is neither a file nor {RANDOM}. ({PREFIX}NAME@REVISION chooses "
            "a revision of the hub.)"
        )
    if weights is None and source.is_folder:
        weights = _find_weights_file(source)
    common = {"config": config, "output_loading_info": True, "ignore_mismatched_sizes": True}
    if weights is not None:
        state_dict, origin = read_state_dict(weights), weights
        recorded = compute_sha256(weights)
        _check_size(num_weights, state_dict, origin)
        network, info = cls.from_pretrained(None, state_dict=state_dict, **common)
    else:
        recorded, origin = f"hf:{commit}", f"--model {source.model}"
        network, info = cls.from_pretrained(source.path, revision=commit, **common)
    for name, shape, expected in sorted(info["mismatched_keys"]):
        if not name.startswith(_TEXT_PARTS):
            raise UserError(
                f"{origin}: does not fit the model: {name} is {list(shape)}, but must be "
                f"{list(expected)}."
            )
    return _Loaded(network.eval().float(), recorded, sorted(info["missing_keys"]))


def _check_size(num_weights: int, state_dict: Mapping[str, Tensor], origin: str) -> None:
    """Raise UserError if a network has far more weights than the file that it is loaded from.

    The check is made before memory for the network is allocated.
    """
    num_given = sum(weight.numel() for weight in state_dict.values())
    # files of image encoders may lack a text encoder, which is at most a few times as large
    if num_weights > 10 * num_given + 10_000_000:
        raise UserError(
            f"{origin}: does not fit the model: it has {num_given:,} weights, but the config "
            f"describes a network of {num_weights:,}."
        )


def _find_weights_file(source: _Source) -> str:
    for name in WEIGHTS_FILES:
        path = os.path.join(source.path, name)
        if os.path.isfile(path):
            return path
    found = [name for name in sorted(os.listdir(source.path)) if name.endswith(".index.json")]
    reason = f"are in several files ({found[0]})" if found else "are missing"
    raise UserError(
        f"--model {source.model}: the weights {reason}; the folder must have one of "
        f"{', '.join(WEIGHTS_FILES)}. Or give --weights FILE, or {RANDOM} for random ones."
    )


def _get_preprocessing(transformers: ModuleType, source: _Source, commit: str) -> Preprocessing:
    """Return the preprocessing of a model's image processor, for a feature store to record."""
    processor = transformers.AutoImageProcessor.from_pretrained(
        source.path, revision=commit or "main", trust_remote_code=False
    )
    name = f"--model {source.model}: its image processor {type(processor).__name__}"
    options = _read_processor(processor.to_dict())
    if options is None:
        raise UserError(f"{name} has options that cannot be recorded in a feature store.")
    preprocessing = Preprocessing(**options)
    check_preprocessing(
        preprocessing,
        lambda image: processor(images=image, return_tensors="pt")["pixel_values"][0],
        name,
    )
    return preprocessing


def _read_processor(settings: Mapping[str, Any]) -> Optional[dict[str, Any]]:
    """Convert the settings of an image processor to arguments of :class:`.Preprocessing`.

    The result is None if no arguments have the same effect.
    """
    size = settings.get("size") or {}
    height, short = size.get("height"), size.get("shortest_edge")
    interpolation = _INTERPOLATIONS.get(settings.get("resample", 2))
    options: dict[str, Any] = {"interpolation": interpolation, "crop": "none"}
    if not settings.get("do_resize", True):
        options.update(resize="none", interpolation="bilinear")
    elif interpolation is None or (height != size.get("width")) or not (height or short):
        return None
    elif short and "crop_pct" in settings and short < 384:  # ConvNeXT's processor
        options.update(resize="short", resize_size=int(short / settings["crop_pct"]))
        options.update(crop="center_floor", size=short)
    elif short and "crop_pct" in settings:
        options.update(resize="squash", resize_size=short, size=short)
    elif short:
        options.update(resize="short", resize_size=short, size=short)
    else:
        options.update(resize="squash", resize_size=height, size=height)
    if settings.get("do_center_crop"):
        crop = settings.get("crop_size") or {}
        if not crop.get("height") or crop.get("height") != crop.get("width"):
            return None
        # the crop of an image that has its size already would change nothing
        if options["resize"] != "squash" or options["resize_size"] != crop["height"]:
            options.update(crop="center_floor", size=crop["height"])
    options["scale"] = 255.0
    if settings.get("do_rescale", True):
        # 1 in most processors, but for the rounding of 1 / 255
        options["scale"] = round(255 * settings.get("rescale_factor", 1 / 255), 6)
    means, deviations = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if settings.get("do_normalize", True):
        means, deviations = settings["image_mean"], settings["image_std"]
    return {**options, "mean": tuple(means), "std": tuple(deviations)}
