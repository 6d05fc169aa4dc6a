"""Networks for videos: 3D ResNeXt-101 of Kinetics, and the video classifiers of torchvision.

==============================  ========  =========================================================
model                           channels  preprocessing of a clip of 16 frames
==============================  ========  =========================================================
resnext101_3d                   2048      short side 112, centre 112 x 112, values 0 to 255 less the
                                          mean pixel of ActivityNet
r3d_18, mc3_18, r2plus1d_18     512       torchvision's: 171 x 128, centre 112 x 112
s3d                             1024      torchvision's: 256 x 256, centre 224 x 224
mvit_v1_b, mvit_v2_s            768       torchvision's: short side 256, centre 224 x 224
swin3d_t, swin3d_s, swin3d_b    768-1024  torchvision's: short side 256, centre 224 x 224
==============================  ========  =========================================================

The features are what enters the classifier: the last map, averaged over time and positions, or the
class token. Weights of resnext101_3d are the published file ``resnext-101-kinetics.pth`` of Hara
et al. (https://github.com/kenshohara/3D-ResNets-PyTorch). Its authors trained it with the mean of
ActivityNet on pixel values of 0 to 255, not divided by a deviation (their issue 12), although it
was trained on Kinetics; ``--normalize kinetics`` takes the other mean.
"""

from typing import Optional

import torch
import torchvision
from torch import nn

from fairseq_mm.errors import UserError
from fairseq_mm.extract import open_clip_backbones
from fairseq_mm.extract.backbones import (
    RANDOM,
    Backbone,
    builds,
    check_model,
    is_file,
    load_weights,
    transform_of,
)
from fairseq_mm.extract.clip_preprocessing import ClipPreprocessing
from fairseq_mm.extract.preprocessing import normalization
from fairseq_mm.extract.resnext3d import ResNeXt3d

RESNEXT = "resnext101_3d"
# the one layer: what enters the classifier
LAYER = "pooled"
# names of classifiers, of the networks here
CLASSIFIERS = ("fc", "classifier", "head")


def video_model_names() -> list[str]:
    """3D ResNeXt-101 and all video classifiers of the installed torchvision."""
    members = vars(torchvision.models.video).items()
    return [RESNEXT, *sorted(name for name, function in members if builds(function))]


def is_video_model(model: str) -> bool:
    """Whether ``model`` turns videos into features, not images."""
    return model in video_model_names()


def check_any_model(model: str) -> None:
    """
    Raises:
        UserError: if it is a model of neither images nor videos, with the names that come near.
    """
    if not model.startswith(open_clip_backbones.PREFIX) and not is_video_model(model):
        check_model(model, others=video_model_names())


def default_clip_preprocessing(model: str, weights: Optional[str]) -> ClipPreprocessing:
    """That of the published network, or of torchvision's weights."""
    if model == RESNEXT:
        return ClipPreprocessing(resize_size=112, size=112, **normalization("activitynet"))
    keywords = transform_of(model, weights)
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


def build_video_backbone(model: str, *, weights: Optional[str] = None, seed: int = 0) -> Backbone:
    """A network of clips without its classifier.

    Args:
        model: one of :func:`video_model_names`.
        weights: a state dict file, a name of torchvision's weights (downloaded once), or ``none``
            for random ones; None for torchvision's default ones.
        seed: of random weights.

    Returns:
        backbone: its network maps ``[B, 3, frames, height, width]`` to ``[B, D]``.

    Raises:
        UserError: if the model or weights do not exist or do not fit together.
    """
    if not is_video_model(model):
        raise UserError(
            f"`model` must be one of {', '.join(video_model_names())}, but is {model!r} instead."
        )
    weights = _weights_or_default(model, weights)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed if weights == RANDOM else 0)
        network: nn.Module
        if model == RESNEXT:
            network = ResNeXt3d().eval()
        else:
            network = vars(torchvision.models.video)[model](weights=None).eval()
    classifier = next(name for name in CLASSIFIERS if hasattr(network, name))
    needed = [name for name in network.state_dict() if not name.startswith(classifier + ".")]
    recorded = load_weights(network, model, weights, seed=seed, needed=needed)
    setattr(network, classifier, nn.Identity())
    if isinstance(network, ResNeXt3d):
        network.fold_norms()
    return Backbone(network.eval(), model, recorded, LAYER, False)


def _weights_or_default(model: str, weights: Optional[str]) -> str:
    if model != RESNEXT:
        return weights or "DEFAULT"
    if weights is None or not (weights == RANDOM or is_file(weights)):
        given = "" if weights is None else f" {weights} is no file."
        raise UserError(
            f"--model {RESNEXT}: its weights are a file (resnext-101-kinetics.pth of "
            f"3D-ResNets-PyTorch). Give it: --weights FILE, or {RANDOM} for random ones.{given}"
        )
    return weights
