"""Small network that computes the demo's features: a ResNet-18 up to its third stage, trained on
drawn images.

As networks trained on ImageNet do, it learns to recognise the content of images,
not to caption them: first single things close up, then whole images with their arrangement, their
light, and size, colour and shape of one or two things. The last stage, three quarters of the
parameters, is left out. The state dict is otherwise torchvision's, so that ``fairseq-mm extract
--model resnet18 --layer layer3 --weights FILE`` reads it.
"""

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Callable

import numpy as np
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from drawings.drawn_images import DAYS, SIDE, draw
from drawings.scenes import (
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
_NO_LABEL = -100  # ignored by cross_entropy
_BATCH = 32
_LEARNING_RATE = 2e-3
_WEIGHT_DECAY = 0.02


def get_labels(scene: Scene, night: bool) -> list[int]:
    """Return one class index per label; ``-100`` where the scene has no second thing."""
    labels = [ARRANGEMENTS.index(scene.arrangement), int(night)]
    for thing in scene.things:
        labels += [
            SIZES.index(thing.size),
            COLOURS.index(thing.colour),
            SHAPES.index(thing.shape),
        ]
    labels += [_NO_LABEL] * (3 * (2 - len(scene.things)))
    labels_of_shape = {}
    for thing, other in zip(scene.things, scene.things[::-1]):
        place = "alone" if other is thing else relation(thing, other)
        labels_of_shape[thing.shape] = [
            1 + SIZES.index(thing.size),
            1 + COLOURS.index(thing.colour),
            1 + _PLACES.index(place),
        ]
    for shape in SHAPES:
        labels += labels_of_shape.get(shape, [0, 0, 0])
    return labels


def draw_examples(count: int, seed: str, *, close_up: bool = False) -> tuple[Tensor, Tensor]:
    """Draw images with labels.

    Args:
        count: Number of images, ``N``.
        seed: Seed of the scenes and the images.
        close_up: Draw single things at the size that they have in whole images, on a ground of half
            the side: a quarter of the work.

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
        wanted = get_labels(scene, night)
        if close_up:
            scene = _close_up(scene, rng)
            side = SIDE // 2
            wanted = [_NO_LABEL, *get_labels(scene, night)[1:]]
        images.append(np.asarray(draw(scene, rng, side, night=night)))
        labels.append(wanted)
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2), torch.tensor(labels)


def _close_up(scene: Scene, rng: random.Random) -> Scene:
    thing = rng.choice(scene.things)
    radius = 2 * thing.radius
    x, y = (rng.uniform(radius, 1 - radius) for _ in range(2))
    return Scene("alone", (replace(thing, x=x, y=y, radius=radius),))


def normalize(images: Tensor) -> Tensor:
    """Normalize ``[B, 3, side, side]`` uint8 images as ``fairseq-mm extract`` does."""
    _, _, mean, std = NORMALIZATIONS["imagenet"]
    shape = (1, 3, 1, 1)
    scaled = (images.float() / 255 - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)
    return scaled.contiguous(memory_format=torch.channels_last)


class SumPool(nn.Module):
    """Pooling to a quarter of the sum over positions.

    A thing adds less to a mean if the ground is larger: a linear layer that has learned from means
    of close-ups (2 x 2 positions) would have to learn anew from whole images. For close-ups this
    pooling is the mean.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Pool ``[B, C, height, width]`` to ``[B, C, 1, 1]``."""
        return maps.sum((2, 3), keepdim=True) / 4


def build_network() -> nn.Module:
    """Build a ResNet-18 without its last stage, with a linear layer for all labels."""
    network = torchvision.models.resnet18(weights=None)
    network.layer4, network.avgpool = nn.Identity(), SumPool()
    network.fc = nn.Linear(network.layer3[-1].bn2.num_features, sum(_CLASSES))
    return network.to(memory_format=torch.channels_last)


def train_recognizer(
    *, close_ups: int, images: int, seed: int, show: Callable[[str], None]
) -> tuple[nn.Module, float]:
    """Train the network on images drawn for it, each seen once.

    Args:
        close_ups: Number of images of single things.
        images: Number of whole images after them.
        seed: Seed of the images and the initial weights.
        show: Called with a line after each fifth of either kind.

    Returns:
        network: The network in evaluation mode.
        accuracy: Share of 500 new images in which it recognises everything.
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


def train_and_save(weights: Path, close_ups: int, images: int, seed: int) -> str:
    """Train the network, save its state dict, and return a line with its accuracy."""
    network, accuracy = train_recognizer(
        close_ups=close_ups, images=images, seed=seed, show=lambda line: print(line, flush=True)
    )
    partial = weights.with_name(f"{weights.name}.partial")
    torch.save(network.state_dict(), partial)
    os.replace(partial, weights)
    return f"recognises everything in {accuracy:.0%} of new images"


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
    """Compute the mean over images of the sum of their labels' cross-entropies.

    Args:
        logits: ``[B, C]`` scores of the classes of all labels.
        labels: ``[B, L]`` class indices.
    """
    total = logits.new_zeros(())
    for label, part in zip(labels.T, logits.split(_CLASSES, dim=1)):
        total = total + functional.cross_entropy(
            part, label, ignore_index=_NO_LABEL, reduction="sum"
        )
    return total / len(logits)


@torch.no_grad()
def all_recognized(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images for which every label is right."""
    right = torch.ones(len(labels), dtype=torch.bool)
    logits = torch.cat([network(normalize(part)) for part in images.split(250)])
    for label, part in zip(labels.T, logits.split(_CLASSES, dim=1)):
        right &= (part.argmax(1) == label) | (label == _NO_LABEL)
    return right.float().mean().item()
