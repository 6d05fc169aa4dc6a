"""The small network that gives the demo's features: a ResNet-18 up to its third stage, trained on
drawn images.

It plays the part that networks trained on ImageNet play for images: it learns to recognise
what is drawn, not to caption. First single things, close up; then whole images: their
arrangement, day or night, and size, colour and shape of the one or two things, known by their place
and by their shape. The last stage, three quarters of the parameters, is left out. Its state dict is
otherwise torchvision's, so that ``fairseq-mm extract --model resnet18 --layer layer3 --weights
FILE`` takes it.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Callable

import numpy as np
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from fairseq_mm.demo.drawn_images import DAYS, SIDE, draw
from fairseq_mm.demo.scenes import (
    ARRANGEMENTS,
    COLOURS,
    SHAPES,
    SIZES,
    Scene,
    compose_scene,
    relation,
)
from fairseq_mm.extract.preprocessing import NORMALIZATIONS

MODEL, LAYER = "resnet18", "layer3"
# number of classes of each label: the arrangement, day or night, then size, colour and shape of the
# first thing in reading order and of the second one, then size, colour and place of each shape, the
# first class for none
_PLACES = ("alone", "above", "below", "left", "right")
_CLASSES = (
    *(len(ARRANGEMENTS), 2),
    *(len(SIZES), len(COLOURS), len(SHAPES)) * 2,
    *(len(SIZES) + 1, len(COLOURS) + 1, len(_PLACES) + 1) * len(SHAPES),
)
_NO_LABEL = -100  # cross_entropy leaves it out
_BATCH = 32
_LEARNING_RATE = 2e-3
_WEIGHT_DECAY = 0.02


def labels_of(scene: Scene, night: bool) -> list[int]:
    """One class index per label; ``-100`` for a second thing that the scene does not have."""
    labels = [ARRANGEMENTS.index(scene.arrangement), int(night)]
    for thing in scene.things:
        labels += [
            SIZES.index(thing.size),
            COLOURS.index(thing.colour),
            SHAPES.index(thing.shape),
        ]
    labels += [_NO_LABEL] * (3 * (2 - len(scene.things)))
    of_shape = {}
    for thing, other in zip(scene.things, scene.things[::-1]):
        place = "alone" if other is thing else relation(thing, other)
        of_shape[thing.shape] = [
            1 + SIZES.index(thing.size),
            1 + COLOURS.index(thing.colour),
            1 + _PLACES.index(place),
        ]
    for shape in SHAPES:
        labels += of_shape.get(shape, [0, 0, 0])
    return labels


def draw_examples(count: int, seed: str, *, close_up: bool = False) -> tuple[Tensor, Tensor]:
    """Images and labels.

    Args:
        count: how many, ``N``.
        seed: of the scenes and the images.
        close_up: single things at the size they have in whole images, on a ground of half the
            side: a quarter of the work.

    Returns:
        images: ``[N, 3, side, side]`` uint8.
        labels: ``[N, labels]`` int64.
    """
    rng = random.Random(seed)
    images, labels = [], []
    for _ in range(count):
        scene = compose_scene(rng)
        side = SIDE
        night = rng.random() >= DAYS
        wanted = labels_of(scene, night)
        if close_up:
            scene = _close_up(scene, rng)
            side = SIDE // 2
            wanted = [_NO_LABEL, *labels_of(scene, night)[1:]]
        images.append(np.asarray(draw(scene, rng, side, night=night)))
        labels.append(wanted)
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2), torch.tensor(labels)


def _close_up(scene: Scene, rng: random.Random) -> Scene:
    thing = rng.choice(scene.things)
    radius = 2 * thing.radius
    x, y = (rng.uniform(radius, 1 - radius) for _ in range(2))
    return Scene("alone", (replace(thing, x=x, y=y, radius=radius),))


def normalize(images: Tensor) -> Tensor:
    """``[B, 3, side, side]`` uint8 to what ``extract`` gives to the network."""
    _, _, mean, std = NORMALIZATIONS["imagenet"]
    shape = (1, 3, 1, 1)
    scaled = (images.float() / 255 - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)
    return scaled.contiguous(memory_format=torch.channels_last)


class SumPool(nn.Module):
    """Sum over positions, by a quarter.

    What a thing adds to a mean is less the larger the ground is: a linear layer that has learned
    from means of close-ups, 2 x 2 positions, would have to learn anew from whole images. Of
    close-ups this is the mean.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """``[B, C, height, width]`` to ``[B, C, 1, 1]``."""
        return maps.sum((2, 3), keepdim=True) / 4


def build_network() -> nn.Module:
    """ResNet-18 without its last stage, with a linear layer for all labels."""
    network = torchvision.models.resnet18(weights=None)
    network.layer4, network.avgpool = nn.Identity(), SumPool()
    network.fc = nn.Linear(network.layer3[-1].bn2.num_features, sum(_CLASSES))
    return network.to(memory_format=torch.channels_last)


def train_recognizer(
    *, close_ups: int, images: int, seed: int, show: Callable[[str], None]
) -> tuple[nn.Module, float]:
    """Trains the network on images drawn for it, each seen once.

    Args:
        close_ups: number of images of single things.
        images: number of whole images after them.
        seed: of the images and the initial weights.
        show: gets a line after each fifth of either kind.

    Returns:
        network: in evaluation mode.
        accuracy: share of 500 new images of which it recognises everything.
    """
    torch.manual_seed(seed)
    network = build_network()
    for count, close_up in ((close_ups, True), (images, False)):
        examples = draw_examples(count, f"recognizer {seed} {close_up}", close_up=close_up)
        # edges and colours look the same close up and from afar, and are the most work to train
        frozen = [] if close_up else [network.conv1, network.bn1, network.layer1]
        what = "close-ups" if close_up else "whole images"
        _train(network, *examples, frozen=frozen, description=what, show=show)
    network.eval()
    examples = draw_examples(500, f"recognizer {seed} unseen")
    return network, all_recognized(network, *examples)


def _train(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    frozen: Sequence[nn.Module],
    description: str,
    show: Callable[[str], None],
) -> None:
    steps = len(images) // _BATCH
    network.train()
    for part in frozen:
        part.requires_grad_(False).eval()
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _LEARNING_RATE, total_steps=steps, pct_start=0.2
    )
    for step in range(steps):
        batch = slice(step * _BATCH, (step + 1) * _BATCH)
        loss = label_loss(network(normalize(images[batch])), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % max(1, steps // 5) == 0:
            show(f"{description}: {(step + 1) / steps:.0%}, loss {loss.item():.2f}")


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over images of the sum of their labels' cross-entropies.

    Args:
        logits: ``[B, classes of all labels]``.
        labels: ``[B, labels]``.
    """
    total = logits.new_zeros(())
    for label, part in zip(labels.T, logits.split(_CLASSES, dim=1)):
        total = total + functional.cross_entropy(
            part, label, ignore_index=_NO_LABEL, reduction="sum"
        )
    return total / len(logits)


@torch.no_grad()
def all_recognized(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of the images of which every label is right."""
    right = torch.ones(len(labels), dtype=torch.bool)
    logits = torch.cat([network(normalize(part)) for part in images.split(250)])
    for label, part in zip(labels.T, logits.split(_CLASSES, dim=1)):
        right &= (part.argmax(1) == label) | (label == _NO_LABEL)
    return right.float().mean().item()
