"""Builds networks of torchvision for images and for clips of videos, cut off after a layer.

A network returns one feature vector per image or clip. With ``grid``, networks for images return
one vector per position of the last feature map, or per patch, instead. "Map" is a feature map.

=====================================  ==============================  =======================
images                                 features                        with ``grid``
=====================================  ==============================  =======================
alexnet, vgg*                          fc7: the second 4096-wide       last map before the
                                       layer after its ReLU            classifier
resnet*, resnext*, wide_resnet*,       the last map, averaged over     the last map, a vector
inception_v3, googlenet, mobilenet_*,  its positions (the input of     per position, top left
densenet*, efficientnet_*, ...         the classifier)                 first
convnext_*, maxvit_t                   the input of the classifier     the last map
vit_*                                  class token of the last layer   tokens of the patches
=====================================  ==============================  =======================

``layer`` chooses any other node of a network for images, by torchvision's names
(``torchvision.models.feature_extraction.get_graph_node_names``).

==============================  ========  =========================================================
clips                           channels  preprocessing of a clip of 16 frames
==============================  ========  =========================================================
resnext101_3d                   2048      short side 112, centre 112 x 112, values 0 to 255 minus
                                          the mean pixel of ActivityNet
r3d_18, mc3_18, r2plus1d_18     512       torchvision's: 171 x 128, centre 112 x 112
s3d                             1024      torchvision's: 256 x 256, centre 224 x 224
mvit_v1_b, mvit_v2_s            768       torchvision's: short side 256, centre 224 x 224
swin3d_t, swin3d_s, swin3d_b    768-1024  torchvision's: short side 256, centre 224 x 224
==============================  ========  =========================================================

The features of a clip are the input of the classifier: the last map, averaged over time and
positions, or the class token. The weights of resnext101_3d are the published file
``resnext-101-kinetics.pth`` of Hara et al. (https://github.com/kenshohara/3D-ResNets-PyTorch).
Hara et al. trained the network on Kinetics, but subtracted the mean of ActivityNet from pixel
values of 0 to 255, and did not divide by a deviation (issue 12 of their repository);
``--normalize kinetics`` subtracts the mean of Kinetics instead.
"""

import difflib
import inspect
import os
import re
import typing
import warnings
from collections import Counter
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any, NamedTuple, Optional
from urllib.error import URLError
from urllib.parse import urlparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fairseq_mm.compat.fairseq import OF_TORCHVISION, deferred
from fairseq_mm.data.input_files import compute_sha256
from fairseq_mm.errors import UserError
from fairseq_mm.extract.clip_preprocessing import ClipPreprocessing
from fairseq_mm.extract.preprocessing import Preprocessing, normalization
from fairseq_mm.extract.resnext3d import ResNeXt3d
from fairseq_mm.extract.weights import (
    RANDOM,
    is_file,
    load_state_dict,
    read_state_dict,
    seeded,
)

with deferred(OF_TORCHVISION):
    import torchvision
    from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

# torchvision's file names contain the first digits of the file's SHA-256
_DIGEST = re.compile(r"-([a-f0-9]+)\.pth$")
# prefix of the model's name -> (layer, layer with grid); the first matching prefix counts
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
# 3D ResNeXt-101 is not in torchvision, but How2's features are from it
RESNEXT = "resnext101_3d"
# networks of clips have one layer: the input of the classifier, which has one of three names
POOLED = "pooled"
_CLASSIFIERS = ("fc", "classifier", "head")
# these weights come from TensorFlow and expect other means; torchvision transforms the input only
# if it loads the weights itself
TRANSFORMS_INPUT = ("inception_v3", "googlenet")


class Backbone(NamedTuple):
    """Network in evaluation mode, and the attributes that identify it in a feature store.

    Attributes:
        network: Network that maps images ``[B, 3, height, width]`` to N feature vectors each,
            ``[B, N, D]``, or clips ``[B, 3, frames, height, width]`` to features ``[B, D]``.
        model: Name of the model.
        weights: Text that identifies the weights: SHA-256 of the file, ``torchvision:NAME``,
            ``timm:TAG``, or ``none:SEED`` for random weights.
        layer: Name of the layer.
        grid: True if the network returns one feature vector per position.
        preprocessing: Preprocessing that the weights were trained with.
        digest: SHA-256 of the values of the weights, see :func:`.compute_weights_digest`; empty for
            networks of this package and of torchvision.
        library: Name and version of the library of the network, such as ``timm 1.0.31``; empty for
            networks of this package and of torchvision.
    """

    network: nn.Module
    model: str
    weights: str
    layer: str
    grid: bool
    preprocessing: Preprocessing
    digest: str = ""
    library: str = ""


class LayerRows(nn.Module):
    """Network that returns the feature vectors of one layer.

    Args:
        layers: Module that maps ``[B, 3, height, width]`` to a dictionary whose entry ``"layer"``
            is ``[B, D]``, a feature map ``[B, D, height, width]``, or tokens ``[B, tokens, D]``.
        grid: Return one vector per position instead of the mean over positions.
        has_class_token: True if the first token represents the image, and the other tokens its
            patches. The class token then takes the place of the mean.
    """

    def __init__(self, layers: nn.Module, *, grid: bool, has_class_token: bool = False) -> None:
        super().__init__()
        self.layers = layers
        self.grid = grid
        self.has_class_token = has_class_token

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``[B, 3, height, width]`` to N vectors each, ``[B, N, D]`` float32."""
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


def fuse_for_evaluation(conv: Any, norm: Any) -> tuple[nn.Module, nn.Module]:
    """Return one convolution that computes ``conv`` and then ``norm`` in evaluation mode, and an
    identity to replace ``norm``."""
    return fuse_conv_bn_eval(conv, norm), nn.Identity()


# Function from a convolution and its batch normalisation to the two modules that replace them.
Fuse = Callable[[Any, Any], tuple[nn.Module, nn.Module]]


def list_image_models() -> list[str]:
    """Return the names of all image classifiers of the installed torchvision."""
    return _list_models(torchvision.models)


def list_clip_models() -> list[str]:
    """Return ``resnext101_3d`` and all video classifiers of the installed torchvision."""
    return [RESNEXT, *_list_models(torchvision.models.video)]


def _list_models(module: ModuleType) -> list[str]:
    return sorted(
        name
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__.startswith("torchvision.models.")
        and function.__name__.islower()
        and "weights" in inspect.signature(function).parameters
    )


def get_weights_entry(model: str, name: str) -> Any:
    """Return torchvision's ``Weights`` object for a name such as ``IMAGENET1K_V1``."""
    # by the annotation: not all versions of torchvision have get_model_weights
    functions = {**vars(torchvision.models.video), **vars(torchvision.models)}
    hint = inspect.signature(functions[model]).parameters["weights"].annotation
    enum = next(kind for kind in typing.get_args(hint) if kind is not type(None))
    if name not in enum.__members__:
        raise UserError(
            f"--weights {name}: is neither a file nor a name of torchvision's weights for "
            f"{model} ({', '.join(enum.__members__)}), nor {RANDOM}."
        )
    return enum[name]


def _get_transform(model: str, weights: Optional[str]) -> dict[str, Any]:
    """Return the arguments of the torchvision transform that the weights were trained with."""
    enum: Any = type(get_weights_entry(model, "DEFAULT"))
    # a file does not record its transform: the transform of the model's first weights is assumed
    entry = enum[weights] if weights in enum.__members__ else next(iter(enum))
    # the transforms are partials: their signature has the defaults that an entry does not change
    parameters = inspect.signature(entry.transforms).parameters
    return {name: parameter.default for name, parameter in parameters.items()}


def default_preprocessing(model: str, weights: str) -> Preprocessing:
    """Return the preprocessing that weights of a torchvision network for images need."""
    keywords = _get_transform(model, weights)
    # torchvision writes a side of a square as a number or as a list of one number
    (resize_size, *_), (size, *_) = (
        np.atleast_1d(keywords[name]) for name in ("resize_size", "crop_size")
    )
    return Preprocessing(
        resize="short",
        resize_size=int(resize_size),
        crop="center",
        size=int(size),
        interpolation=keywords["interpolation"].value,
        mean=tuple(keywords["mean"]),
        std=tuple(keywords["std"]),
    )


def default_clip_preprocessing(model: str, weights: Optional[str]) -> ClipPreprocessing:
    """Return the preprocessing that weights of a network for clips need."""
    if model == RESNEXT:
        return ClipPreprocessing(resize_size=112, size=112, **normalization("activitynet"))
    keywords = _get_transform(model, weights)
    height, *width = keywords["resize_size"]
    return ClipPreprocessing(
        resize="squash" if width else "short",
        resize_size=height,
        resize_width=width[0] if width and width[0] != height else 0,
        size=keywords["crop_size"][0],
        antialias=False,
        interpolation=keywords["interpolation"].value,
        mean=tuple(keywords["mean"]),
        std=tuple(keywords["std"]),
    )


def build_image_backbone(
    model: str,
    *,
    weights: Optional[str] = None,
    layer: Optional[str] = None,
    grid: bool = False,
    seed: int = 0,
    fuse: Fuse = fuse_for_evaluation,
) -> Backbone:
    """Build a torchvision network for images, cut off after a layer; see :func:`.build_backbone`,
    and :func:`fold_norms` for ``fuse``."""
    weights = weights or "DEFAULT"
    layer = default_layer(model, grid) if layer is None else layer
    options: dict[str, object] = {}
    if model in TRANSFORMS_INPUT:
        # initialisation by torchvision would take a minute for these networks
        options = {"transform_input": True, "init_weights": False}
    with seeded(seed if weights == RANDOM else 0):
        network = vars(torchvision.models)[model](weights=None, **options).eval()
    layers = cut_after(network, model, layer)
    needed = list(layers.state_dict())  # the names of tensors are as in the whole network
    recorded = _load_weights(network, model, weights, seed=seed, needed=needed)
    fold_norms(layers, fuse)  # after the weights are loaded, since it may rename tensors
    has_class_token = model.startswith("vit_") and layer.startswith("encoder")
    rows = LayerRows(layers, grid=grid, has_class_token=has_class_token)
    preprocessing = default_preprocessing(model, weights)
    return Backbone(rows.eval(), model, recorded, layer, grid, preprocessing)


def build_clip_backbone(model: str, *, weights: Optional[str] = None, seed: int = 0) -> Backbone:
    """Build a network for clips of videos, without its classifier; see :func:`.build_backbone`."""
    if model == RESNEXT and (weights is None or not (weights == RANDOM or is_file(weights))):
        raise UserError(
            f"--weights {weights}: must be a file (resnext-101-kinetics.pth of 3D-ResNets-PyTorch) "
            f"or {RANDOM} (random weights) for {RESNEXT}."
        )
    weights = weights or "DEFAULT"
    with seeded(seed if weights == RANDOM else 0):
        network: nn.Module
        if model == RESNEXT:
            network = ResNeXt3d().eval()
        else:
            network = vars(torchvision.models.video)[model](weights=None).eval()
    classifier = next(name for name in _CLASSIFIERS if hasattr(network, name))
    needed = [name for name in network.state_dict() if not name.startswith(classifier + ".")]
    recorded = _load_weights(network, model, weights, seed=seed, needed=needed)
    setattr(network, classifier, nn.Identity())
    # after the weights are loaded, since folding renames tensors
    if isinstance(network, ResNeXt3d):
        network.fold_norms()
    preprocessing = default_clip_preprocessing(model, weights)
    return Backbone(network.eval(), model, recorded, POOLED, False, preprocessing)


def _load_weights(
    network: nn.Module, model: str, weights: str, *, seed: int, needed: Collection[str]
) -> str:
    """Load weights (a file, a name, or ``none``) into a whole network; return the string that
    identifies them in feature stores. A file must have the tensors ``needed``."""
    if weights == RANDOM:
        return f"{RANDOM}:{seed}"
    if is_file(weights):
        load_state_dict(network, read_state_dict(weights), needed=needed, origin=weights)
        return compute_sha256(weights)
    entry = get_weights_entry(model, weights)
    load_state_dict(network, download_weights(entry), needed=needed, origin=f"--weights {weights}")
    return f"torchvision:{entry.name}"


def default_layer(model: str, grid: bool) -> str:
    """Return the default layer of a torchvision network for images; empty if there is none."""
    layers = (layers for prefix, layers in DEFAULT_LAYERS.items() if model.startswith(prefix))
    return next(layers, ("", ""))[grid]


def cut_after(network: nn.Module, model: str, layer: str) -> nn.Module:
    """Return the network up to ``layer``; ``model`` names it in messages."""
    with warnings.catch_warnings():
        # torchvision warns that nodes differ between training and evaluation
        warnings.simplefilter("ignore")
        try:
            return create_feature_extractor(network, return_nodes={layer: "layer"}).eval()
        except ValueError:
            nodes = get_graph_node_names(network)[1]
    modules = {node.rsplit(".", n)[0] for node in nodes for n in range(node.count(".") + 1)}
    names = sorted(modules | set(nodes))
    near = [name for name in names if layer and layer in name][:5]
    near = difflib.get_close_matches(layer, names, n=5, cutoff=0.4) or near or nodes[-5:]
    raise UserError(f"--layer: {model} has no layer {layer!r}. Near: {', '.join(near)}.")


def fold_norms(layers: Any, fuse: Fuse = fuse_for_evaluation) -> None:
    """Merge each batch normalisation into the convolution before it.

    The features change only by float32 rounding; MobileNet-v2 needs a quarter less time on a CPU.
    ``layers``, a result of :func:`cut_after`, is changed in place.
    """
    modules = dict(layers.named_modules())
    calls = [node for node in layers.graph.nodes if node.op == "call_module"]
    uses = Counter(node.target for node in calls)
    pairs = [(node.args[0], node) for node in calls if isinstance(node.args[0], Node)]
    for conv, norm in pairs:
        # a convolution whose output is also read elsewhere must stay as it is
        is_read_once = len(conv.users) == uses[conv.target] == uses[norm.target] == 1
        if is_read_once and _can_fold(modules.get(conv.target), modules[norm.target]):
            fused = fuse(modules[conv.target], modules[norm.target])
            for name, module in zip((str(conv.target), str(norm.target)), fused):
                parent, _, attribute = name.rpartition(".")
                setattr(layers.get_submodule(parent), attribute, module)
    # the graph calls blocks of torchvision.ops as a whole
    for name in uses:
        for module in modules[name].modules():
            for i in range(len(module) - 1) if isinstance(module, nn.Sequential) else ():
                if _can_fold(module[i], module[i + 1]):
                    module[i], module[i + 1] = fuse(module[i], module[i + 1])


def _can_fold(conv: Optional[nn.Module], norm: nn.Module) -> bool:
    return isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)


def download_weights(entry: Any) -> dict[str, Tensor]:
    """Download weights of torchvision once, into the folder of ``torch.hub``, and read them safely;
    ``entry`` is a result of :func:`get_weights_entry`."""
    # not entry.get_state_dict, which may unpickle any objects
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
            f"file on another machine and give it: --weights FILE (recipes: WEIGHTS=FILE)."
        ) from None
    return read_state_dict(file)
