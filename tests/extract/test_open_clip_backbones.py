"""Image towers of open_clip; a small configuration of our own stands for the published ones."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import build_extractor, build_extractor_from_identity
from fairseq_mm.extract.open_clip_backbones import build_open_clip, split_name

TEXT = {"context_length": 5, "vocab_size": 11, "width": 8, "heads": 2, "layers": 1}
TOWERS = {
    "tiny-vit": {"image_size": 32, "layers": 2, "width": 24, "head_width": 12, "patch_size": 16},
    "tiny-rn": {
        "image_size": 64,
        "layers": [1, 1, 1, 1],
        "width": 8,
        "patch_size": None,
    },
}


@pytest.fixture(scope="module")
def open_clip(tmp_path_factory):
    package = pytest.importorskip("open_clip")
    folder = tmp_path_factory.mktemp("configs")
    for name, vision in TOWERS.items():
        config = {"embed_dim": 10, "vision_cfg": vision, "text_cfg": TEXT}
        (folder / f"{name}.json").write_text(json.dumps(config))
    package.add_model_config(folder)
    return package


def images(side: int) -> torch.Tensor:
    return torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", TOWERS)
def test_pooled_rows_are_those_of_encode_image(open_clip, name, tmp_path):
    model = open_clip.create_model(name).eval()
    torch.save(model.state_dict(), tmp_path / "w.pt")
    x = images(TOWERS[name]["image_size"])
    backbone = build_open_clip(f"open_clip:{name}", weights=str(tmp_path / "w.pt"))
    with torch.inference_mode():
        torch.testing.assert_close(backbone.network(x)[:, 0], model.encode_image(x))
    from_name = build_open_clip(f"open_clip:{name}/{tmp_path}/w.pt")
    assert from_name.weights == backbone.weights
    assert from_name.model == f"open_clip:{name}"


def test_the_grid_is_the_patches_of_the_last_layer(open_clip, tmp_path):
    model = open_clip.create_model("tiny-vit").eval()
    torch.save(model.state_dict(), tmp_path / "w.pt")
    backbone = build_open_clip("open_clip:tiny-vit", weights=str(tmp_path / "w.pt"), grid=True)
    x = images(32)
    model.visual.output_tokens = True
    with torch.inference_mode():
        rows = backbone.network(x)
        assert rows.shape == (3, 4, 24)
        torch.testing.assert_close(rows, model.visual(x)[1])


def test_the_grid_of_a_convolutional_tower_is_its_last_map(open_clip):
    backbone = build_open_clip("open_clip:tiny-rn", weights="none", grid=True)
    with torch.inference_mode():
        visual, x = backbone.network.network, images(64)
        last = visual.layer4(visual.layer3(visual.layer2(visual.layer1(visual.stem(x)))))
        torch.testing.assert_close(backbone.network(x), last.flatten(2).transpose(1, 2))


def test_the_preprocessing_is_the_models_own(open_clip):
    preprocessing = build_open_clip("open_clip:tiny-vit", weights="none").preprocessing
    assert (preprocessing.resize_size, preprocessing.size) == (32, 32)
    assert preprocessing.interpolation == "bicubic"
    assert preprocessing.mean == pytest.approx((0.48145466, 0.4578275, 0.40821073))


def test_features_are_those_of_open_clips_own_preprocessing(open_clip, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model, _, preprocess = open_clip.create_model_and_transforms("tiny-vit")
    safetensors.save_file(model.eval().state_dict(), tmp_path / "w.safetensors")
    extractor = build_extractor("open_clip:tiny-vit", weights=str(tmp_path / "w.safetensors"))
    pixels = np.random.default_rng(1).integers(0, 256, (51, 78, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    with torch.inference_mode():
        expected = model.encode_image(preprocess(image)[None])
    np.testing.assert_allclose(extractor.extract([image])[0], expected, rtol=1e-4, atol=1e-5)


def test_images_that_are_padded_are_refused(open_clip, monkeypatch):
    model = open_clip.create_model("tiny-vit")
    model.visual.preprocess_cfg["resize_mode"] = "longest"
    monkeypatch.setattr(open_clip, "create_model", lambda name, pretrained: model)
    with pytest.raises(UserError, match="its preprocessing does more than resize, crop and norm"):
        build_open_clip("open_clip:tiny-vit", weights="none")


def test_the_recorded_identity_builds_the_tower_again(open_clip):
    one = build_extractor("open_clip:tiny-vit", weights="none", seed=3, grid=True)
    again = build_extractor_from_identity(one.identity)
    assert again.identity == one.identity
    older = {k: v for k, v in one.identity.items() if k not in ("weights_digest", "library")}
    assert build_extractor_from_identity(older).identity == one.identity
    with pytest.raises(UserError, match="its weights must have the digest 000000000000"):
        build_extractor_from_identity({**one.identity, "weights_digest": "0" * 64})
    x = torch.zeros(1, 32, 32, 3, dtype=torch.uint8).numpy()
    assert (again.rows(x) == one.rows(x)).all()


def test_mistakes_are_one_line(open_clip, tmp_path):
    with pytest.raises(
        UserError, match=r"open_clip:tiny-vot: open_clip has no such model\. Near: t"
    ):
        build_open_clip("open_clip:tiny-vot", weights="none")
    with pytest.raises(UserError, match=r"no such model\. Near: RN50, ViT-B-32\.$"):
        build_open_clip("open_clip:", weights="none")
    with pytest.raises(
        UserError, match=r"open_clip:ViT-B-32: has no default weights.*laion2b_s34b"
    ):
        build_open_clip("open_clip:ViT-B-32")
    with pytest.raises(UserError, match="'laion3b' is neither a file nor weights of tiny-vit"):
        build_open_clip("open_clip:tiny-vit/laion3b")
    with pytest.raises(UserError, match=r"QuickGELU.*: choose open_clip:ViT-B-32-quickgelu/openai"):
        build_open_clip("open_clip:ViT-B-32/openai")
    with pytest.raises(UserError, match="--weights x name two different weights"):
        build_open_clip("open_clip:tiny-vit/laion3b", weights="x")
    torch.save({"visual.proj": torch.zeros(1)}, tmp_path / "w.pt")
    with pytest.raises(
        UserError, match=r"w\.pt: does not fit the model: it lacks visual\.class_emb"
    ):
        build_open_clip("open_clip:tiny-vit", weights=str(tmp_path / "w.pt"))
    with pytest.raises(UserError, match="--layer: is for models of torchvision"):
        build_extractor("open_clip:tiny-vit", weights="none", layer="x")


def test_without_open_clip_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(UserError, match=r"needs the package open_clip.*fairseq-mm\[clip\]"):
        build_open_clip("open_clip:ViT-B-32", weights="none")


def test_names_split_into_model_and_weights():
    assert split_name("open_clip:ViT-B-32") == ("ViT-B-32", None)
    assert split_name("open_clip:ViT-B-32/openai") == ("ViT-B-32", "openai")
    assert split_name("open_clip:RN50//home/w.pt") == ("RN50", "/home/w.pt")
