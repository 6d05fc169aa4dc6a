"""Defines 3D ResNeXt-101, the network of the Kinetics features that summarizers of How2 read.

Hara, Kataoka and Satoh, "Can Spatiotemporal 3D CNNs Retrace the History of 2D CNNs and ImageNet?",
CVPR 2018 (https://arxiv.org/abs/1711.09577), Section 3.2 and Table 1: a ResNeXt with cardinality
32, 3 + 4 + 23 + 3 blocks, 3 x 3 x 3 convolutions, and projections as shortcuts where the shape
changes (type B). The tensors have the names of the published checkpoints
(``resnext-101-kinetics.pth`` for clips of 16 frames, ``resnext-101-64f-kinetics.pth`` for 64), so
that these checkpoints load strictly.

Differs from the published network: the last feature map is averaged over all positions, whatever
their number. The published network has an average pool of fixed size, which covers all positions of
clips of 112 x 112 pixels and 16 (or 64) frames. For such clips, both networks are equal.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

CARDINALITY = 32
BLOCKS = (3, 4, 23, 3)
NUM_CLASSES = 400  # in Kinetics
# factor of a block's residual with random weights: with 1, the sum over 33 blocks would leave the
# range of float16
RANDOM_RESIDUAL = 0.2


class PointwiseConv3d(nn.Module):
    """1 x 1 x 1 convolution, computed on a CPU as a matrix product over the channels. With channels
    last in memory, this is faster than PyTorch's convolution, which does not use oneDNN here."""

    def __init__(self, conv: nn.Conv3d) -> None:
        super().__init__()
        assert conv.bias is not None
        self.stride = conv.stride
        self.weight = nn.Parameter(conv.weight.detach())
        self.bias = nn.Parameter(conv.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Convolve ``[B, channels, time, height, width]``."""
        if x.device.type != "cpu":
            return F.conv3d(x, self.weight, self.bias, self.stride)
        time, height, width = self.stride
        rows = x[:, :, ::time, ::height, ::width].permute(0, 2, 3, 4, 1)
        return F.linear(rows, self.weight.flatten(1), self.bias).permute(0, 4, 1, 2, 3)


class GroupedBottleneck(nn.Module):
    """Residual block: ReLU(shortcut(x) + BN(W3 ReLU(BN(W2 ReLU(BN(W1 x)))))).

    W1 and W3 are 1 x 1 x 1 convolutions, W2 is a 3 x 3 x 3 convolution in ``cardinality`` groups,
    and BN is batch normalisation. The shortcut is the identity, or a 1 x 1 x 1 convolution if the
    shape changes; ``stride`` is W2's and the shortcut's.
    """

    def __init__(
        self,
        in_channels: int,
        mid_channels: int,
        out_channels: int,
        *,
        cardinality: int = CARDINALITY,
        stride: int = 1,
    ) -> None:
        super().__init__()
        self.conv1: Any = nn.Conv3d(in_channels, mid_channels, 1, bias=False)
        self.bn1 = nn.BatchNorm3d(mid_channels)
        self.conv2 = nn.Conv3d(
            mid_channels, mid_channels, 3, stride, padding=1, groups=cardinality, bias=False
        )
        self.bn2 = nn.BatchNorm3d(mid_channels)
        self.conv3: Any = nn.Conv3d(mid_channels, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm3d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: Any = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv3d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm3d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, in_channels, time, height, width]`` to ``out_channels``; the other sizes are
        divided by the stride, and rounded up."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        # in place: no gradient needs the first summand
        return self.relu(self.bn3(self.conv3(out)).add_(shortcut))

    def fold_norms(self) -> None:
        """Merge each batch normalisation into the convolution before it."""
        for number in (1, 2, 3):
            _fold_norm(self, f"conv{number}", f"bn{number}")
        if self.downsample is not None:
            _fold_norm(self.downsample, "0", "1")
            self.downsample[0] = PointwiseConv3d(self.downsample[0])
        self.conv1, self.conv3 = PointwiseConv3d(self.conv1), PointwiseConv3d(self.conv3)


class ResNeXt3d(nn.Module):
    """Classifier of clips; with its layer ``fc`` replaced by an identity, it returns 2048
    features."""

    def __init__(self, blocks: Sequence[int] = BLOCKS, *, num_classes: int = NUM_CLASSES) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(3, 64, 7, stride=(1, 2, 2), padding=3, bias=False)
        self.bn1 = nn.BatchNorm3d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool3d(3, stride=2, padding=1)
        self.layer1 = _layer(64, 128, blocks[0], stride=1)
        self.layer2 = _layer(256, 256, blocks[1], stride=2)
        self.layer3 = _layer(512, 512, blocks[2], stride=2)
        self.layer4 = _layer(1024, 1024, blocks[3], stride=2)
        self.fc = nn.Linear(2048, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv3d):
                # as in the authors' code
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, GroupedBottleneck):
                nn.init.constant_(module.bn3.weight, RANDOM_RESIDUAL)

    def forward(self, clips: Tensor) -> Tensor:
        """Map normalised clips ``[B, 3, frames, height, width]`` to ``[B, classes]`` logits."""
        if isinstance(self.bn1, nn.Identity) and clips.device.type == "cpu":
            clips = clips.contiguous(memory_format=torch.channels_last_3d)
        maps = self.maxpool(self.relu(self.bn1(self.conv1(clips))))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))  # [B, 2048, t, h, w]
        return self.fc(torch.mean(maps, (2, 3, 4)))

    def fold_norms(self) -> "ResNeXt3d":
        """Merge each batch normalisation into the convolution before it, for evaluation only."""
        # it saves a third of the time on a CPU, but renames tensors: load the weights first
        _fold_norm(self, "conv1", "bn1")
        for module in list(self.modules()):
            if isinstance(module, GroupedBottleneck):
                module.fold_norms()
        return self


def _fold_norm(module: nn.Module, conv: str, norm: str) -> None:
    setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm)))
    setattr(module, norm, nn.Identity())


def _layer(in_channels: int, mid_channels: int, num_blocks: int, *, stride: int) -> nn.Sequential:
    out_channels = 2 * mid_channels
    first = GroupedBottleneck(in_channels, mid_channels, out_channels, stride=stride)
    others = (
        GroupedBottleneck(out_channels, mid_channels, out_channels) for _ in range(num_blocks - 1)
    )
    return nn.Sequential(first, *others)
