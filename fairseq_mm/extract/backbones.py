"""Networks of torchvision as extractors: which layer, which weights, which preprocessing.

=====================================  ==============================  =======================
model                                  features                        with ``grid``
=====================================  ==============================  =======================
alexnet, vgg*                          fc7: the second 4096-wide       last map before the
                                       layer after its ReLU            classifier
resnet*, resnext*, wide_resnet*,       the last map, averaged over     the last map, one row a
inception_v3, googlenet, mobilenet_*,  its positions (what enters      position, top left first
densenet*, efficientnet_*, ...         the classifier)
convnext_*, maxvit_t                   what enters the classifier      the last map
vit_*                                  class token of the last layer   the patches' tokens
=====================================  ==============================  =======================

``layer`` chooses any other node of the network, by torchvision's names
(``torchvision.models.feature_extraction.get_graph_node_names``).
"""

import difflib
import inspect
import os
import re
import typing
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Optional
from urllib.error import URLError
from urllib.parse import urlparse

import torch
from torch import Tensor, nn

from fairseq_mm.compat.deferred_imports import OF_TORCHVISION, deferred
from fairseq_mm.errors import UserError
from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.extract.weights import RANDOM, compute_sha256, load_state_dict, read_state_dict

with deferred(OF_TORCHVISION):
    import torchvision
    from torchvision.models.feature_extraction import (
        create_feature_extractor,
        get_graph_node_names,
    )

# in the name of a file of torchvision's: the beginning of its SHA-256
_DIGEST = re.compile(r"-([a-f0-9]+)\.pth$")
# beginning of the model's name -> (layer, layer with grid); the first that fits counts
DEFAULT_LAYERS = {
    "alexnet": ("classifier.5", "features"),
    "vgg": ("classifier.4", "features"),
    "resnet": ("layer4", "layer4"),
    "resnext": ("layer4", "layer4"),
    "wide_resnet": ("layer4", "layer4"),
    "inception_v3": ("Mixed_7c", "Mixed_7c"),
    "googlenet": ("inception5b", "inception5b"),
    "mobilenet": ("features", "features"),
    "efficientnet": ("features", "features"),
    "mnasnet": ("layers", "layers"),
    "densenet": ("relu", "relu"),
    "squeezenet": ("features", "features"),
    "shufflenet": ("conv5", "conv5"),
    "regnet": ("trunk_output", "trunk_output"),
    "convnext": ("classifier.0", "features"),
    "swin": ("permute", "permute"),
    "maxvit": ("classifier.4", "blocks"),
    "vit": ("encoder.ln", "encoder.ln"),
}
# their weights come from TensorFlow and expect other means: torchvision turns this on only where
# it loads the weights itself
TRANSFORMS_INPUT = ("inception_v3", "googlenet")


class Backbone(NamedTuple):
    """A network in evaluation mode, and what is to be known of it.

    Attributes:
        network: ``[B, 3, height, width]`` to ``[B, rows, D]``.
        model: name of the model.
        weights: what the feature store records: SHA-256 of the file, ``torchvision:NAME``,
            ``open_clip:NAME`` or ``none:SEED``.
        layer: name of the layer.
        grid: True for one row a position.
    """

    network: nn.Module
    model: str
    weights: str
    layer: str
    grid: bool


class LayerRows(nn.Module):
    """Feature vectors from one layer of a network.

    Args:
        layers: ``[B, 3, height, width]`` to a dictionary with the layer's output as ``"layer"``:
            ``[B, D]``, a map ``[B, D, height, width]``, or tokens ``[B, tokens, D]``.
        grid: one row a position, instead of their mean.
        has_class_token: the first token stands for the image, the others for its patches.
    """

    def __init__(self, layers: nn.Module, *, grid: bool, has_class_token: bool = False) -> None:
        super().__init__()
        self.layers = layers
        self.grid = grid
        self.has_class_token = has_class_token

    def forward(self, images: Tensor) -> Tensor:
        """
        Args:
            images: ``[B, 3, height, width]``, normalised.

        Returns:
            rows: ``[B, rows, D]`` float32.
        """
        output = self.layers(images)["layer"].float()
        if output.dim() == 4:
            rows = output.flatten(2).transpose(1, 2)  # [B, height * width, D]
        elif output.dim() == 2:
            rows = output[:, None]  # [B, 1, D]
        else:
            rows = output  # [B, tokens, D]
        if self.has_class_token:
            return rows[:, 1:] if self.grid else rows[:, :1]
        return rows if self.grid else rows.mean(1, keepdim=True)


def model_names() -> list[str]:
    """All image classifiers of the installed torchvision."""
    return sorted(name for name, function in vars(torchvision.models).items() if builds(function))


def builds(function: object) -> bool:
    """Whether it is one of torchvision's functions that make a network."""
    return (
        inspect.isfunction(function)
        and function.__module__.startswith("torchvision.models.")
        and function.__name__.islower()
        and "weights" in inspect.signature(function).parameters
    )


def check_model(model: str, *, others: Sequence[str] = ()) -> None:
    """
    Args:
        model: name of an image classifier.
        others: further names that may have been meant.

    Raises:
        UserError: if torchvision has no such model, with the names that come near.
    """
    names = model_names()
    if model not in names:
        names = [*names, *others]
        near = difflib.get_close_matches(model, names, n=4, cutoff=0.5) or ["resnet50", "vgg16"]
        raise UserError(
            f"--model {model}: torchvision {torchvision.__version__} has no such model. Near: "
            f"{', '.join(near)}. (open_clip:NAME for the models of open_clip.)"
        )


def weights_entry(model: str, name: str) -> Any:
    """torchvision's description of the weights ``name`` (``DEFAULT`` or ``IMAGENET1K_V1``).

    Raises:
        UserError: if the model has no such weights.
    """
    names = {**vars(torchvision.models.video), **vars(torchvision.models)}
    hint = inspect.signature(names[model]).parameters["weights"].annotation
    enum = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    if name not in enum.__members__:
        raise UserError(
            f"--weights {name}: is neither a file nor a name of torchvision's weights for "
            f"{model} ({', '.join(enum.__members__)}), nor {RANDOM}."
        )
    return enum[name]


def transform_of(model: str, weights: Optional[str]) -> dict[str, Any]:
    """Arguments of the transform of torchvision's weights; for a file, of the first ones."""
    enum: Any = type(weights_entry(model, "DEFAULT"))
    entry = enum[weights] if weights in enum.__members__ else next(iter(enum))
    # a partial of the transform: its signature has what the weights leave as it is, too
    parameters = inspect.signature(entry.transforms).parameters
    return {name: parameter.default for name, parameter in parameters.items()}


def default_preprocessing(model: str, weights: str) -> Preprocessing:
    """That of torchvision's weights; for a file, that of the first weights of the model."""
    keywords = transform_of(model, weights)
    return Preprocessing(
        resize="short",
        resize_size=_one(keywords["resize_size"]),
        crop="center",
        size=_one(keywords["crop_size"]),
        interpolation=keywords["interpolation"].value,
        mean=tuple(keywords["mean"]),
        std=tuple(keywords["std"]),
    )


def _one(size: Any) -> int:
    return int(size[0] if isinstance(size, (list, tuple)) else size)


def build_backbone(
    model: str,
    *,
    weights: str = "DEFAULT",
    layer: Optional[str] = None,
    grid: bool = False,
    seed: int = 0,
) -> Backbone:
    """A torchvision network, cut off after a layer.

    Args:
        model: its name in torchvision.
        weights: a state dict file, a name of torchvision's weights (downloaded once), or ``none``
            for random ones.
        layer: node of the network; None for the table at the head of this file.
        grid: one row a position.
        seed: of random weights.

    Raises:
        UserError: if model, weights or layer do not exist or do not fit together.
    """
    check_model(model)
    if layer is None:
        layer = default_layer(model, grid)
    build = vars(torchvision.models)[model]
    network = _with_weights_pending(build, model, seed if weights == RANDOM else 0)
    layers = _cut_after(network, model, layer)
    needed = list(layers.state_dict())  # names are those of the whole network
    recorded = load_weights(network, model, weights, seed=seed, needed=needed)
    rows = LayerRows(layers, grid=grid, has_class_token=_has_class_token(model, layer))
    return Backbone(rows.eval(), model, recorded, layer, grid)


def load_weights(
    network: nn.Module, model: str, weights: str, *, seed: int, needed: Collection[str]
) -> str:
    """
    Args:
        network: gets the tensors; it keeps random ones.
        model: its name in torchvision.
        weights: a state dict file, a name of torchvision's weights, or ``none``.
        seed: of random weights.
        needed: names of tensors that must be there.

    Returns:
        recorded: what the feature store records.

    Raises:
        UserError: if the weights do not exist or do not fit.
    """
    if weights == RANDOM:
        return f"{RANDOM}:{seed}"
    if is_file(weights):
        load_state_dict(network, read_state_dict(weights), needed=needed, origin=weights)
        return compute_sha256(weights)
    entry = weights_entry(model, weights)
    load_state_dict(network, downloaded(entry), needed=needed, origin=f"--weights {weights}")
    return f"torchvision:{entry.name}"


def default_layer(model: str, grid: bool) -> str:
    """
    Raises:
        UserError: if the table at the head of this file does not know the model.
    """
    for prefix, layers in DEFAULT_LAYERS.items():
        if model.startswith(prefix):
            return layers[1] if grid else layers[0]
    raise UserError(f"--model {model}: has no default layer. Choose one with --layer.")


def _has_class_token(model: str, layer: str) -> bool:
    return model.startswith("vit_") and layer.startswith("encoder")


def is_file(weights: str) -> bool:
    """Whether ``weights`` means a file, not a name."""
    return os.path.exists(weights) or os.sep in weights or "." in weights


def _with_weights_pending(build: Callable[..., nn.Module], model: str, seed: int) -> nn.Module:
    options: dict[str, object] = {}
    if model in TRANSFORMS_INPUT:
        # torchvision's own initialisation of these takes a minute
        options = {"transform_input": True, "init_weights": False}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(weights=None, **options).eval()


def _cut_after(network: nn.Module, model: str, layer: str) -> nn.Module:
    """The network up to ``layer``; what does not lead there is neither kept nor computed."""
    try:
        with warnings.catch_warnings():
            # torchvision warns that nodes differ between training and evaluation
            warnings.simplefilter("ignore")
            return create_feature_extractor(network, return_nodes={layer: "layer"}).eval()
    except ValueError:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = get_graph_node_names(network)[1]
    modules = {node.rsplit(".", n)[0] for node in nodes for n in range(node.count(".") + 1)}
    names = sorted(modules | set(nodes))
    near = [name for name in names if layer and layer in name][:5]
    near = difflib.get_close_matches(layer, names, n=5, cutoff=0.4) or near or nodes[-5:]
    raise UserError(f"--layer {layer}: {model} has no such layer. Near: {', '.join(near)}.")


def downloaded(entry: Any) -> dict[str, Tensor]:
    """Weights of torchvision, fetched once, as ``torch.hub`` does; but read with weights only.

    Raises:
        UserError: if they cannot be fetched, or hold more than tensors.
    """
    folder = os.path.join(torch.hub.get_dir(), "checkpoints")
    file = os.path.join(folder, os.path.basename(urlparse(entry.url).path))
    digest = _DIGEST.search(file)
    try:
        if not os.path.exists(file):
            os.makedirs(folder, exist_ok=True)
            torch.hub.download_url_to_file(
                entry.url, file, hash_prefix=digest and digest.group(1), progress=False
            )
    except (URLError, OSError, RuntimeError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"--weights {entry.name}: cannot be downloaded from {entry.url} ({reason}). Get the "
            f"file on another machine and give it: --weights FILE"
        ) from None
    return read_state_dict(file)
