"""An extractor's rows depend on the image alone, and the recorded identity builds it again."""

import shutil

import numpy as np
import pytest
import torch
from numerics import assert_close
from PIL import Image
from torchvision import models, transforms

from fairseq_mm.errors import UserError
from fairseq_mm.extract.backbones import Backbone
from fairseq_mm.extract.extractor import (
    Extractor,
    build_extractor,
    build_extractor_from_identity,
)
from fairseq_mm.extract.preprocessing import Preprocessing


def noise(i: int, width: int = 50, height: int = 41) -> Image.Image:
    pixels = np.random.default_rng(i).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    torch.manual_seed(11)
    path = tmp_path_factory.mktemp("weights") / "resnet18.pt"
    torch.save(models.resnet18(weights=None).state_dict(), path)
    return str(path)


@pytest.fixture(scope="module")
def extractor(weights):
    return build_extractor("resnet18", weights=weights, size=32)


def test_rows_equal_plain_torchvision_code(extractor, weights):
    network = models.resnet18(weights=None).eval()
    network.load_state_dict(torch.load(weights))
    network.fc = torch.nn.Identity()
    transform = transforms.Compose(
        [
            transforms.Resize(37),  # round(32 * 256 / 224)
            transforms.CenterCrop(32),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    images = [noise(i) for i in range(3)]
    with torch.inference_mode():
        expected = network(torch.stack([transform(image) for image in images])).numpy()
    for rows, row in zip(extractor.extract(images), expected):
        assert rows.shape == (1, 512)
        assert_close(rows[0], row)


@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v2", "squeezenet1_1"])
def test_the_batch_does_not_change_a_row(model):
    extractor = build_extractor(model, weights="none", size=64)
    images = [noise(i, 64, 64) for i in range(7)]
    together = extractor.extract(images, batch_size=7)
    for batch_size in (1, 2, 3):
        for one, other in zip(extractor.extract(images, batch_size=batch_size), together):
            assert_close(one, other)


def test_the_recorded_identity_builds_the_extractor_again(extractor, weights):
    again = build_extractor_from_identity(extractor.identity, weights)
    assert again.identity == extractor.identity
    np.testing.assert_array_equal(again.extract([noise(1)])[0], extractor.extract([noise(1)])[0])


def test_another_weights_file_is_refused(extractor, tmp_path):
    with pytest.raises(UserError, match=r"made by resnet18 with weights from a file .*give that f"):
        build_extractor_from_identity(extractor.identity)
    (tmp_path / "other.pt").write_bytes(b"other")
    with pytest.raises(
        UserError, match=r"other\.pt: must have the SHA-256 .*, but has d9298a10d1b"
    ):
        build_extractor_from_identity(extractor.identity, str(tmp_path / "other.pt"))
    with pytest.raises(UserError, match="--weights x: is neither a file nor a name of torchvision"):
        build_extractor_from_identity({**extractor.identity, "weights": "ftp:x"})
    with pytest.raises(UserError, match="no `weights` is recorded"):
        build_extractor_from_identity({"extractor": "resnet18"})


def test_a_file_that_has_the_name_of_published_weights_is_refused(
    extractor, weights, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(weights, "IMAGENET1K_V1")
    identity = {**extractor.identity, "weights": "torchvision:IMAGENET1K_V1"}
    with pytest.raises(UserError, match="were made with weights = torchvision:IMAGENET1K_V1, but"):
        build_extractor_from_identity(identity)


def test_a_size_that_the_network_cannot_take_is_named():
    message = "squeezenet1_1, layer features: cannot be run on 1 images of 8 x 8 pixels"
    with pytest.raises(UserError, match=message):
        _ = build_extractor("squeezenet1_1", weights="none", size=8).dim


def test_reduced_precision_comes_near_and_returns_float32(extractor, weights):
    reduced = build_extractor("resnet18", weights=weights, size=32, precision="bf16")
    rows, exact = reduced.extract([noise(0)])[0], extractor.extract([noise(0)])[0]
    assert rows.dtype == np.float32
    assert 0 < np.abs(rows - exact).max() < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v2", "shufflenet_v2_x0_5"])
@pytest.mark.parametrize("grid", [False, True])
def test_a_traced_network_gives_the_same_rows(model, grid):
    extractor = build_extractor(model, weights="none", size=64, grid=grid)
    images = [noise(i) for i in range(9)]  # the last batch is smaller
    expected = extractor.extract(images)
    assert extractor.trace_network()
    called = []
    extractor.network.register_forward_hook(lambda *others: called.append(others))
    for one, other in zip(extractor.extract(images), expected):
        assert_close(one, other)
    assert not called


class Swapped(torch.nn.Module):
    """Network whose trace has the size of its example in it, or that cannot be traced at all."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        if self.error and torch.jit.is_tracing():
            raise self.error
        return x.mean(dim=(2, 3)) * len(x)


@pytest.mark.parametrize("error", [None, RuntimeError("no"), KeyError("no")])
def test_a_network_that_cannot_be_traced_stays(error):
    backbone = Backbone(Swapped(error), "mine", "none:1", "pool", False, Preprocessing(size=32))
    extractor = Extractor(backbone, backbone.preprocessing)
    images = [noise(i) for i in range(3)]
    expected = extractor.extract(images)
    assert not extractor.trace_network()
    for one, other in zip(extractor.extract(images), expected):
        np.testing.assert_array_equal(one, other)
