"""3D ResNeXt-101 has the published shapes and computes what its blocks say."""

import pytest
import torch
from numerics import assert_close
from torch import nn

from fairseq_mm.extract.resnext3d import GroupedBottleneck, PointwiseConv3d, ResNeXt3d


def published_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the published checkpoint (without DataParallel's prefix)."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7, 7)}

    def norm(name: str, channels: int) -> None:
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (channels,)

    norm("bn1", 64)
    before = 64
    for layer, (mid, count) in enumerate(((128, 3), (256, 4), (512, 23), (1024, 3)), start=1):
        for block in range(count):
            name = f"layer{layer}.{block}"
            shapes[f"{name}.conv1.weight"] = (mid, before, 1, 1, 1)
            shapes[f"{name}.conv2.weight"] = (mid, mid // 32, 3, 3, 3)
            shapes[f"{name}.conv3.weight"] = (2 * mid, mid, 1, 1, 1)
            for number, channels in ((1, mid), (2, mid), (3, 2 * mid)):
                norm(f"{name}.bn{number}", channels)
            if block == 0:
                shapes[f"{name}.downsample.0.weight"] = (2 * mid, before, 1, 1, 1)
                norm(f"{name}.downsample.1", 2 * mid)
            before = 2 * mid
    return {**shapes, "fc.weight": (400, 2048), "fc.bias": (400,)}


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(1)
    return ResNeXt3d().eval()


def test_names_and_shapes_are_those_of_the_published_checkpoint(network):
    own = {
        name: tuple(value.shape)
        for name, value in network.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    assert own == published_shapes()
    # 47.5 million of the trunk, 0.8 of the classifier
    assert sum(p.numel() for p in network.parameters()) == 47_521_216 + 2048 * 400 + 400


def test_a_clip_of_16_frames_becomes_one_place_of_4_x_4(network):
    maps = []
    hook = network.layer4.register_forward_hook(lambda *args: maps.append(args[2]))
    with torch.inference_mode():
        scores = network(torch.randn(1, 3, 16, 112, 112))
    hook.remove()
    assert maps[0].shape == (1, 2048, 1, 4, 4)
    expected = torch.nn.functional.linear(
        maps[0].mean((2, 3, 4)), network.fc.weight, network.fc.bias
    )
    torch.testing.assert_close(scores, expected)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_block_is_its_formula_with_a_grouped_convolution(stride):
    C, M, K, G, T, H, W = 6, 4, 8, 2, 3, 4, 5
    torch.manual_seed(2)
    block = GroupedBottleneck(C, M, K, cardinality=G, stride=stride).eval()
    for module in block.modules():
        if isinstance(module, nn.BatchNorm3d):
            for values in (module.weight, module.bias, module.running_mean):
                nn.init.normal_(values)
            nn.init.uniform_(module.running_var, 0.5, 2)
    x = torch.randn(1, C, T, H, W)

    def norm(maps, layer):
        parts = (layer.running_mean, layer.running_var, layer.weight, layer.bias)
        mean, variance, weight, bias = (part[:, None, None, None] for part in parts)
        return (maps - mean) / torch.sqrt(variance + layer.eps) * weight + bias

    def pointwise(maps, weight):
        return torch.einsum("oc,cthw->othw", weight[:, :, 0, 0, 0], maps)

    inner = norm(pointwise(x[0], block.conv1.weight), block.bn1).clamp(min=0)
    padded = torch.zeros(M, T + 2, H + 2, W + 2)
    padded[:, 1:-1, 1:-1, 1:-1] = inner
    places = [range(0, size, stride) for size in (T, H, W)]
    grouped = torch.zeros(M, *map(len, places))
    for m in range(M):
        group = m // (M // G)  # output channel m sees the M / G inputs of its own group alone
        for i, t in enumerate(places[0]):
            for j, h in enumerate(places[1]):
                for k, w in enumerate(places[2]):
                    for c in range(M // G):
                        window = padded[group * (M // G) + c, t : t + 3, h : h + 3, w : w + 3]
                        grouped[m, i, j, k] += (block.conv2.weight[m, c] * window).sum()
    out = norm(grouped, block.bn2).clamp(min=0)
    out = norm(pointwise(out, block.conv3.weight), block.bn3)
    shortcut = x[0][:, ::stride, ::stride, ::stride]
    shortcut = norm(pointwise(shortcut, block.downsample[0].weight), block.downsample[1])
    with torch.inference_mode():
        assert_close(block(x)[0], (out + shortcut).clamp(min=0))


def test_a_block_that_keeps_the_shape_adds_its_input():
    block = GroupedBottleneck(8, 4, 8, cardinality=2).eval()
    nn.init.zeros_(block.bn3.weight)
    x = torch.randn(1, 8, 2, 3, 4)
    assert block.downsample is None
    with torch.inference_mode():
        torch.testing.assert_close(block(x), x.clamp(min=0))


def test_folded_norms_compute_the_same():
    torch.manual_seed(2)
    small = ResNeXt3d((1, 2, 1, 1), num_classes=5).eval()
    for module in small.modules():
        if isinstance(module, nn.BatchNorm3d):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -1, 1)
    clips = torch.randn(2, 3, 5, 37, 30)
    clips.requires_grad_()
    expected = small(clips)
    (gradient,) = torch.autograd.grad(expected.square().sum(), clips)
    expected = expected.detach()
    assert expected.std() > 0.1
    with torch.no_grad():
        found = small.fold_norms()(clips)
    assert not any(isinstance(module, nn.BatchNorm3d) for module in small.modules())
    assert_close(found, expected)
    (same,) = torch.autograd.grad(small(clips).square().sum(), clips)
    assert_close(same, gradient)


def test_a_pointwise_convolution_is_a_convolution_beside_a_cpu():
    conv = nn.Conv3d(4, 6, 1, stride=(1, 2, 3))
    pointwise, x = PointwiseConv3d(conv), torch.randn(2, 4, 3, 5, 7)
    assert_close(pointwise(x), conv(x))
    assert pointwise.to("meta")(x.to("meta")).shape == conv(x).shape
