"""Features equal those of plain torchvision code up to roundings, whatever the model and layer."""

import functools
import hashlib
import subprocess
from argparse import Namespace

import pytest
import torch
from numerics import assert_close
from torch import nn
from torchvision import models

from fairseq_mm.errors import UserError
from fairseq_mm.extract import backbones
from fairseq_mm.extract.backbones import LayerRows, default_layer, download_weights
from fairseq_mm.extract.extractor import build_backbone

B = 2


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


def images(side: int) -> torch.Tensor:
    return torch.randn(B, 3, side, side, generator=torch.Generator().manual_seed(5))


def saved(network: nn.Module, path) -> str:
    """A state dict file; batch norms get statistics that leave the activations alive."""
    torch.manual_seed(7)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.05, 0.2)
            module.weight.uniform_(0.8, 1.2)
            module.bias.normal_(0, 0.1)
    torch.save(network.state_dict(), path)
    return str(path)


class NarrowConv(nn.Conv2d):
    def __init__(self, inputs: int, outputs: int, **options: object) -> None:
        super().__init__(max(3, inputs // 16), outputs // 16, **options)


class NarrowLinear(nn.Linear):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs // 16, outputs // 16)


@pytest.mark.parametrize(("name", "fc7"), [("alexnet", 6), ("vgg16", 5), ("vgg19", 5)])
def test_fc7_is_the_second_wide_layer_after_its_relu(name, fc7, tmp_path, monkeypatch):
    monkeypatch.setattr(nn, "Conv2d", NarrowConv)  # the same structure, 1/256 of the parameters
    monkeypatch.setattr(nn, "Linear", NarrowLinear)
    network = vars(models)[name](weights=None).eval()
    weights = saved(network, tmp_path / "w.pt")
    x = images(70)
    maps = network.features(x)
    expected = network.classifier[:fc7](network.avgpool(maps).flatten(1))
    assert isinstance(network.classifier[fc7 - 1], nn.ReLU)
    rows = build_backbone(name, weights=weights).network(x)
    assert rows.shape == (B, 1, 4096 // 16)
    assert_close(rows[:, 0], expected)
    assert (rows == 0).any()
    assert (rows > 0).any()
    grid = build_backbone(name, weights=weights, grid=True).network(x)
    assert_close(grid, maps.flatten(2).transpose(1, 2))


def test_resnet_is_averaged_over_the_last_map_or_given_as_grid(tmp_path):
    network = models.resnet18(weights=None).eval()
    weights = saved(network, tmp_path / "w.pt")
    x = images(70)
    last_map = nn.Sequential(*list(network.children())[:-2])(x)  # [B, 512, 3, 3]
    pooled = build_backbone("resnet18", weights=weights)
    assert_close(pooled.network(x)[:, 0], network.avgpool(last_map).flatten(1))
    grid = build_backbone("resnet18", weights=weights, grid=True).network(x)
    assert grid.shape == (B, 9, 512)
    for row in range(9):
        assert_close(grid[:, row], last_map[:, :, row // 3, row % 3])


def test_inception_transforms_its_input_as_its_weights_expect(tmp_path):
    network = models.inception_v3(weights=None, init_weights=False, transform_input=True).eval()
    weights = saved(network, tmp_path / "w.pt")
    x = images(80)
    network.fc = nn.Identity()
    rows = build_backbone("inception_v3", weights=weights).network(x)
    assert_close(rows[:, 0], network(x))


def test_a_vision_transformer_gives_class_token_and_patches(tmp_path, monkeypatch):
    @functools.wraps(models.vit_b_32)
    def small(**_options: object) -> nn.Module:
        return models.VisionTransformer(
            image_size=64, patch_size=32, num_layers=2, num_heads=3, hidden_dim=12, mlp_dim=20
        )

    monkeypatch.setattr(models, "vit_b_32", small)
    network = small().eval()
    weights = saved(network, tmp_path / "w.pt")
    x = images(64)
    network.heads = nn.Identity()
    rows = build_backbone("vit_b_32", weights=weights).network(x)
    assert_close(rows[:, 0], network(x))
    tokens = torch.cat([network.class_token.expand(B, -1, -1), network._process_input(x)], dim=1)
    grid = build_backbone("vit_b_32", weights=weights, grid=True).network(x)
    assert grid.shape == (B, 4, 12)
    assert_close(grid, network.encoder(tokens)[:, 1:])


def test_any_layer_by_name(tmp_path):
    network = models.resnet18(weights=None).eval()
    weights = saved(network, tmp_path / "w.pt")
    x = images(64)
    stem = network.maxpool(network.relu(network.bn1(network.conv1(x))))
    expected = network.layer2(network.layer1(stem)).mean((2, 3))
    backbone = build_backbone("resnet18", weights=weights, layer="layer2")
    assert_close(backbone.network(x)[:, 0], expected)
    assert backbone.layer == "layer2"
    logits = build_backbone("resnet18", weights=weights, layer="fc").network(x)
    assert_close(logits[:, 0], network(x))


def test_what_lies_behind_the_layer_is_neither_kept_nor_needed(tmp_path):
    network = models.resnet18(weights=None).eval()
    state_dict = {k: v for k, v in network.state_dict().items() if not k.startswith("layer4")}
    state_dict["fc.weight"] = torch.zeros(7, 512)  # a classifier of other classes
    state_dict["fc.bias"] = torch.zeros(7)
    torch.save(state_dict, tmp_path / "w.pt")
    backbone = build_backbone("resnet18", weights=str(tmp_path / "w.pt"), layer="layer3")
    kept = backbone.network.state_dict()
    assert not any(name.startswith(("layers.layer4", "layers.fc")) for name in kept)
    with pytest.raises(UserError, match=r"does not fit the model: it lacks layer4\.0\.conv1"):
        build_backbone("resnet18", weights=str(tmp_path / "w.pt"))


def test_without_a_network_the_url_and_the_way_out_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    message = r"--weights IMAGENET1K_V1: cannot be downloaded from https:.*resnet18.*--weights FILE"
    with pytest.raises(UserError, match=message):
        build_backbone("resnet18", weights="DEFAULT")


def test_fetched_weights_are_read_with_weights_only(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    torch.save({"weight": torch.ones(2)}, tmp_path / "x.pth")
    digest = hashlib.sha256((tmp_path / "x.pth").read_bytes()).hexdigest()[:8]
    file = (tmp_path / "x.pth").rename(tmp_path / f"x-{digest}.pth")
    entry = Namespace(name="IMAGENET1K_V1", url=file.as_uri())
    assert torch.equal(download_weights(entry)["weight"], torch.ones(2))
    # a file that lies there already is not fetched, and so not compared with its digest
    torch.save({"weight": subprocess.Popen}, tmp_path / "home/hub/checkpoints" / file.name)
    with pytest.raises(UserError, match=rf"{file.name}: cannot be loaded safely"):
        download_weights(entry)


def test_every_model_has_a_default_layer_or_asks_for_one():
    names = backbones.list_image_models()
    assert {"alexnet", "vgg19", "resnet152", "inception_v3", "mobilenet_v2"} <= set(names)
    for name in names:
        assert default_layer(name, grid=True)
    assert default_layer("capsnet", grid=False) == ""
    with pytest.raises(UserError, match=r"--layer: resnet18 has no layer ''. Near: .*fc"):
        build_backbone("resnet18", weights="none", layer="")


def test_what_enters_the_classifier_where_a_norm_stands_before_it():
    network = models.convnext_tiny(weights=None).eval()
    rows = LayerRows(
        backbones.cut_after(network, "convnext_tiny", default_layer("convnext_tiny", False)),
        grid=False,
    )
    x = images(64)
    network.classifier[2] = nn.Identity()
    assert_close(rows(x)[:, 0], network(x))


def count_norms(network: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())


@pytest.mark.parametrize(
    ("name", "left"),
    # densenet normalises the maps of several convolutions at once
    [("mobilenet_v2", 0), ("resnet18", 0), ("shufflenet_v2_x0_5", 0), ("densenet121", 62)],
)
def test_batch_normalisation_is_merged_into_convolutions(name, left, tmp_path, monkeypatch):
    weights = saved(vars(models)[name](weights=None), tmp_path / "w.pt")
    x = images(64)
    folded = build_backbone(name, weights=weights).network
    monkeypatch.setattr(backbones, "fold_norms", lambda *arguments: None)
    plain = build_backbone(name, weights=weights).network
    assert count_norms(folded) == left < count_norms(plain)
    assert_close(folded(x), plain(x))
