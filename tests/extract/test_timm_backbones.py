"""Networks of timm give timm's own features, and a store's record builds them again."""

import numpy as np
import pytest
import torch
from numerics import assert_close
from PIL import Image

from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import (
    build_backbone,
    build_extractor,
    build_extractor_from_identity,
    list_models,
)
from fairseq_mm.extract.timm_backbones import build_timm
from fairseq_mm.extract.weights import check_same_extractor

timm = pytest.importorskip("timm")
safetensors = pytest.importorskip("safetensors.torch")


def noise(width=211, height=180):
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def own_features(network, image):
    """What timm makes of an image: pooled vector, and output of `forward_features`."""
    config = timm.data.resolve_model_data_config(network)
    x = timm.data.create_transform(**config, is_training=False)(image)[None]
    with torch.inference_mode():
        features = network.forward_features(x)
        return network.forward_head(features, pre_logits=True), features


def saved(name, path):
    """A network with random weights and statistics, saved to a file."""
    torch.manual_seed(1)
    network = timm.create_model(name).eval()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(std=0.1)
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 1.5)
    safetensors.save_file(network.state_dict(), path)
    return network


# convolutions with batch norm (with and without activation), channels last, class token, registers
@pytest.mark.parametrize(
    "name", ["test_resnet", "test_efficientnet", "test_mambaout", "test_vit", "test_vit4"]
)
def test_features_are_timms_own(name, tmp_path):
    path = str(tmp_path / "w.safetensors")
    network = saved(name, path)
    pooled, features = own_features(network, noise())
    (rows,) = build_extractor(f"timm:{name}", weights=path).extract([noise()])
    assert_close(rows, pooled)
    if features.dim() == 3:
        expected = features[0, network.num_prefix_tokens :]
    elif name == "test_mambaout":
        expected = features[0].flatten(0, 1)
    else:
        expected = features[0].flatten(1).T
    grid = build_extractor(f"timm:{name}", weights=path, grid=True)
    (rows,) = grid.extract([noise()])
    assert_close(rows, expected)
    assert grid.identity["layer"] == "forward_features"


@pytest.mark.parametrize(
    "change",
    [
        {"crop_mode": "squash", "crop_pct": 0.875},  # resized to 182 x 182, then cropped
        {"crop_mode": "squash", "crop_pct": 1.0},
        {"crop_mode": "squash", "input_size": (3, 64, 64), "crop_pct": 64 / 73.5},
        {"crop_pct": 0.9, "interpolation": "bilinear"},
        {"crop_pct": 1.0, "interpolation": "nearest", "mean": (0.5,) * 3, "std": (0.3, 0.4, 0.5)},
        {"input_size": (3, 96, 96), "interpolation": "lanczos"},
    ],
)
def test_the_final_extractor_preprocesses_as_timm(monkeypatch, tmp_path, change):
    network = saved("test_resnet", tmp_path / "w.safetensors")
    config = {**timm.data.resolve_model_data_config(network), **change}
    monkeypatch.setattr(timm.data, "resolve_model_data_config", lambda _: config)
    extractor = build_extractor("timm:test_resnet", weights=str(tmp_path / "w.safetensors"))
    for image in (noise(), noise(301, 64), noise(40, 50)):
        assert_close(extractor.extract([image])[0], own_features(network, image)[0])
    config["crop_mode"] = "border"
    with pytest.raises(UserError, match=r"preprocessing cannot be recorded .*crop border"):
        build_timm("timm:test_vit", weights="none")


def test_the_recorded_identity_builds_the_network_again(tmp_path):
    one = build_extractor("timm:test_resnet", weights="none", seed=3)
    assert one.identity["extractor"] == "timm:test_resnet.r160_in1k"
    assert (one.identity["weights"], one.identity["layer"]) == ("none:3", "pre_logits")
    assert one.identity["library"] == f"timm {timm.__version__}"
    again = build_extractor_from_identity(one.identity)
    assert again.identity == one.identity
    np.testing.assert_array_equal(again.extract([noise()])[0], one.extract([noise()])[0])
    changed = {**one.identity, "weights_digest": "names:" + "0" * 64, "library": "timm 0.9"}
    message = r"recorded features .by timm 0.9. were made with weights_digest = 0{12}\.\.\., but "
    with pytest.raises(UserError, match=message):
        build_extractor_from_identity(changed)


def test_published_weights_are_recorded_by_tag_and_digest(monkeypatch, tmp_path):
    path = str(tmp_path / "w.safetensors")
    network = saved("test_vit", path)
    create = timm.create_model

    def download(name, pretrained):
        assert name == "test_vit.r160_in1k"
        model = create(name)
        if pretrained:
            model.load_state_dict(network.state_dict())
        return model

    monkeypatch.setattr(timm, "create_model", download)
    one = build_extractor("timm:test_vit")
    assert one.identity["weights"] == "timm:r160_in1k"
    assert build_extractor("timm:test_vit", weights="r160_in1k").identity == one.identity
    assert build_extractor_from_identity(one.identity).identity == one.identity

    def fail(name, pretrained):
        if pretrained:
            raise OSError("no route to the hub\nsecond line")
        return create(name)

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(UserError, match=r"r160_in1k: cannot be built; .*\(no"):
        build_extractor_from_identity(one.identity)
    # without network, a file with the same weights takes their place, another file does not
    again = build_extractor_from_identity(one.identity, path)
    assert again.identity == one.identity
    np.testing.assert_array_equal(again.extract([noise()])[0], one.extract([noise()])[0])
    other = {**network.state_dict(), "norm.bias": torch.ones(64)}
    safetensors.save_file(other, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="were made with weights_digest = "):
        build_extractor_from_identity(one.identity, str(tmp_path / "other.safetensors"))


def test_the_digest_is_of_the_values_that_features_depend_on(tmp_path):
    path = str(tmp_path / "w.safetensors")
    network = saved("test_vit", path)
    digest = build_timm("timm:test_vit", weights=path).digest
    state = network.state_dict()
    torch.save({"state_dict": {**state, "head.bias": torch.ones(1000)}}, tmp_path / "w.pth")
    assert build_timm("timm:test_vit", weights=str(tmp_path / "w.pth")).digest == digest
    # two exchanged tensors of one shape
    exchanged = {**state, "norm.bias": state["norm.weight"], "norm.weight": state["norm.bias"]}
    torch.save(exchanged, tmp_path / "w.pth")
    other = build_timm("timm:test_vit", weights=str(tmp_path / "w.pth"))
    assert other.digest != digest
    # the digest of earlier versions is not compared
    one = build_extractor("timm:test_vit", weights=path).identity
    earlier = {**one, "weights_digest": "0" * 64}
    assert build_extractor_from_identity(earlier, path).identity == one
    check_same_extractor(earlier, one)
    state["norm.bias"] = state["norm.bias"] + 1
    torch.save(state, tmp_path / "w.pth")
    assert build_timm("timm:test_vit", weights=str(tmp_path / "w.pth")).digest != digest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "timm:resnet1888"}, r"is neither a model .*\(Model architecture .resnet1888"),
        ({"model": "timm:test_vit.x"}, r"is neither .*\(Invalid pretrained tag .x. for test_vit"),
        ({"model": "timm:test_vit", "weights": "x"}, r"\(Invalid pretrained tag .x. for test_vit"),
        ({"model": "timm:test_vit.r160_in1k", "weights": "x"}, "tag .r160_in1k and x."),
        ({"model": "timm:test_vit", "weights": "/no/w.pth"}, r"/no/w\.pth: .*No such file"),
        ({"model": "timm:test_coatnet"}, "timm:test_coatnet: (cannot be built|is neither)"),
        ({"model": "timm:test_vit", "weights": "none", "layer": "x"}, "--layer: is no option of t"),
        ({"model": "resnet1888"}, "no such model. .*Networks of timm: timm:NAME"),
    ],
)
def test_mistakes_are_one_line(options, message):
    with pytest.raises(UserError, match=message):
        build_backbone(**options)


def test_a_network_without_grid_or_pooled_vector_is_named(monkeypatch):
    network = timm.create_model("test_vit")
    for tokens in (torch.zeros(1, 1, 64), torch.zeros(1, 4, 64)):  # the class token, and 3 more
        monkeypatch.setattr(type(network), "forward_features", lambda self, x, y=tokens: y)
        with pytest.raises(UserError, match=r"^--grid: timm:test_vit has neither"):
            _ = build_extractor("timm:test_vit", weights="none", grid=True).dim
    monkeypatch.setattr(
        type(network), "forward_features", lambda self, x: [torch.zeros(len(x), 3, 64)]
    )
    monkeypatch.setattr(type(network), "forward_head", lambda self, x, pre_logits: x)
    with pytest.raises(UserError, match=r"^--grid: timm:test_vit has neither a feature map nor"):
        _ = build_extractor("timm:test_vit", weights="none", grid=True).dim
    with pytest.raises(UserError, match=r"^--model timm:test_vit: has no pooled output; use --gri"):
        _ = build_extractor("timm:test_vit", weights="none").dim


def test_models_are_listed_by_a_pattern():
    assert list_models("timm:test_vit?.*") == [f"timm:test_vit{n}.r160_in1k" for n in (2, 3)]
    assert "timm:test_vit" in list_models("timm:st_v")
    assert list_models("squeeze") == ["squeezenet1_0", "squeezenet1_1"]
