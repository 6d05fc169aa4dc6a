"""Networks of videos take the published files, and give what enters their classifiers."""

import math

import pytest
import torch
from test_resnext3d import published_shapes
from torchvision.models import video

from fairseq_mm.extract.backbones import list_clip_models
from fairseq_mm.extract.extractor import build_backbone, find_family
from fairseq_mm.extract.resnext3d import ResNeXt3d
from fairseq_mm.extract.weights import compute_sha256


def published_tensors() -> dict[str, torch.Tensor]:
    """Names and shapes of the published file, with values that stay in range."""
    torch.manual_seed(5)
    tensors = {}
    for name, shape in published_shapes().items():
        if len(shape) == 5:  # a convolution: keeps the variance
            tensors[name] = torch.randn(shape) * (2 / math.prod(shape[1:])) ** 0.5
        else:
            start = {"weight": 0.2 if "bn3" in name else 1, "running_var": 1}
            tensors[name] = start.get(name.split(".")[-1], 0) + 0.1 * torch.rand(shape)
    return tensors


def test_the_published_layout_loads_strictly_and_its_classifier_is_left_out(tmp_path):
    tensors = published_tensors()
    path = str(tmp_path / "resnext-101-kinetics.pth")
    state = {f"module.{name}": tensor for name, tensor in tensors.items()}
    torch.save({"epoch": 150, "arch": "resnext-101", "state_dict": state, "optimizer": {}}, path)
    backbone = build_backbone("resnext101_3d", weights=path)
    assert backbone[1:5] == ("resnext101_3d", compute_sha256(path), "pooled", False)

    plain = ResNeXt3d()
    plain.load_state_dict(tensors, strict=True)
    plain.fc = torch.nn.Identity()
    clips = torch.randn(2, 3, 5, 40, 33)
    with torch.inference_mode():
        expected = plain.eval()(clips)
        assert expected.shape == (2, 2048)
        assert expected.std() > 0.01
        torch.testing.assert_close(backbone.network(clips), expected, rtol=1e-4, atol=1e-4)


def test_pooled_features_are_what_enters_the_classifier():
    for model, classifier, shape in (
        ("mc3_18", "fc", (2, 3, 4, 16, 16)),
        ("s3d", "classifier", (1, 3, 24, 32, 32)),
    ):
        if model not in list_clip_models():
            continue
        backbone = build_backbone(model, weights="none", seed=3)
        torch.manual_seed(3)
        whole = vars(video)[model](weights=None).eval()
        if model == "s3d":  # which otherwise takes 224 x 224 pixels only
            for network in (whole, backbone.network):
                network.avgpool = torch.nn.AvgPool3d((2, 1, 1), stride=1)
        entered = []
        getattr(whole, classifier).register_forward_hook(
            lambda _module, inputs, _output, into=entered: into.append(inputs[0])
        )
        clips = torch.randn(shape)
        with torch.inference_mode():
            whole(clips)
            rows = backbone.network(clips)
        expected = entered[0]
        if expected.dim() == 5:  # torchvision averages after this classifier, which is linear
            expected = expected.mean((2, 3, 4))
        assert rows.shape == (shape[0], {"mc3_18": 512, "s3d": 1024}[model])
        torch.testing.assert_close(rows, expected)


@pytest.mark.skipif(not hasattr(torch.device, "__enter__"), reason="needs PyTorch 2")
def test_every_network_has_a_classifier_to_leave_out():
    assert {"resnext101_3d", "r3d_18", "mc3_18", "r2plus1d_18"} <= set(list_clip_models())
    assert {find_family(name).reads for name in list_clip_models()} == {"videos"}
    assert find_family("resnet18").reads == "images"
    torch.manual_seed(0)
    with torch.device("meta"):
        for name in list_clip_models():
            network = ResNeXt3d() if name == "resnext101_3d" else vars(video)[name](weights=None)
            names = {parameter.split(".")[0] for parameter, _ in network.named_parameters()}
            assert len(names & {"fc", "classifier", "head"}) == 1


def test_random_weights_depend_on_the_seed_alone():
    states = [build_backbone("mc3_18", weights="none", seed=s) for s in (1, 1, 2)]
    first, second, third = (backbone.network.state_dict()["stem.0.weight"] for backbone in states)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert [backbone.weights for backbone in states] == ["none:1", "none:1", "none:2"]
