"""Vision models of transformers give the library's own features, from a folder and from the hub."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from numerics import assert_close
from PIL import Image

from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import build_extractor, build_extractor_from_identity
from fairseq_mm.extract.hf_backbones import build_hf
from fairseq_mm.extract.networks import build_backbone

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
VISION = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}
TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 20,
    "max_position_embeddings": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
BOTH = {"text_config": TEXT, "vision_config": VISION}
SQUARE = {"size": {"height": 32, "width": 32}}
CROP = {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}}
STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2]}
# class of the model, its config, class of the image processor and its settings; features: layer,
# and number of tokens before the patches
MODELS = {
    "vit": ("ViTModel", VISION, "ViTImageProcessor", SQUARE, "pooler_output", 1),
    "vit-classifier": (
        *("ViTForImageClassification", VISION, "ViTImageProcessor", SQUARE, "class_token", 1),
    ),
    "dinov2": (
        *("Dinov2WithRegistersModel", VISION, "BitImageProcessor", CROP, "pooler_output", 5),
    ),
    "clip": ("CLIPModel", BOTH, "CLIPImageProcessor", CROP, "image_features", 1),
    "siglip": ("SiglipModel", BOTH, "SiglipImageProcessor", SQUARE, "image_features", 0),
    "resnet": (
        *("ResNetModel", STAGES, "ConvNextImageProcessor", {"size": {"shortest_edge": 32}}),
        *("pooler_output", None),
    ),
    "swin": (
        *("SwinModel", {**SWIN, "window_size": 2}, "ViTImageProcessor", SQUARE),
        *("pooler_output", 0),
    ),
}


def noise(width=78, height=51):
    # a crop of the image, resized to 55 x 36, has a margin of half a pixel
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Writes the folder of a model with random weights, once; returns its path."""
    root = tmp_path_factory.mktemp("models")

    def find(name):
        path = root / name
        if not path.exists():
            cls, settings, processor, options, _, _ = MODELS[name]
            model = getattr(transformers, cls)
            torch.manual_seed(2)
            network = model(model.config_class(**json.loads(json.dumps(settings))))
            network.save_pretrained(path)
            getattr(transformers, processor)(**options).save_pretrained(path)
        return str(path)

    return find


def own_output(path, image, *, pooled):
    """What transformers makes of an image whose processor resizes with Pillow, as we do."""
    processor = transformers.AutoImageProcessor.from_pretrained(path, backend="pil")
    x = processor(image, return_tensors="pt")["pixel_values"]
    network = transformers.AutoModel.from_pretrained(path).eval()
    with torch.inference_mode():
        if pooled and hasattr(network, "get_image_features"):
            return network.get_image_features(pixel_values=x)
        return getattr(network, "vision_model", network)(pixel_values=x)


@pytest.mark.parametrize("name", MODELS)
def test_features_are_the_librarys_own(folder, name):
    path = folder(name)
    layer, num_prefix_tokens = MODELS[name][4:]
    extractor = build_extractor(f"hf:{path}")
    assert extractor.identity["layer"] == layer
    assert extractor.identity["extractor"] == f"hf:{name}"
    output = own_output(path, noise(), pooled=True)
    expected = output.last_hidden_state[:, 0] if layer == "class_token" else output.pooler_output
    assert_close(extractor.extract([noise()])[0], expected.flatten(1))
    (rows,) = build_extractor(f"hf:{path}", grid=True).extract([noise()])
    hidden = own_output(path, noise(), pooled=False).last_hidden_state[0]
    is_map = num_prefix_tokens is None
    assert_close(rows, hidden.flatten(1).T if is_map else hidden[num_prefix_tokens:])


@pytest.mark.parametrize("name", ["clip", "vit-classifier"])
def test_the_weights_file_is_enough_to_build_the_network_again(folder, name, tmp_path):
    source = shutil.copytree(folder(name), tmp_path / name)
    one = build_extractor(f"hf:{source}")
    file = str(shutil.move(source / "model.safetensors", tmp_path / "w.safetensors"))
    shutil.rmtree(source)
    again = build_extractor_from_identity(one.identity, file)
    assert again.identity == one.identity
    np.testing.assert_array_equal(again.extract([noise()])[0], one.extract([noise()])[0])
    with pytest.raises(UserError, match=r"give that file \(--weights"):
        build_extractor_from_identity(one.identity)
    config = json.loads(one.identity["network_config"])
    assert not {"_name_or_path", "transformers_version", "id2label", "dtype"} & set(config)


def test_a_hostile_config_does_not_fill_the_memory(folder):
    one = build_extractor(f"hf:{folder('vit')}")
    config = json.loads(one.identity["network_config"])
    for changes, message in (
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 1000, but is 10000000"),
        ({"intermediate_size": 10**9}, r"it has \d\S+ weights, but the config describes a net"),
    ):
        hostile = {**one.identity, "network_config": json.dumps({**config, **changes})}
        with pytest.raises(UserError, match=message):
            build_extractor_from_identity(hostile, f"{folder('vit')}/model.safetensors")


def test_random_weights_are_built_again_from_their_seed(folder):
    one = build_extractor(f"hf:{folder('vit')}", weights="none", seed=4)
    again = build_extractor_from_identity(one.identity)
    assert again.identity == one.identity
    other = build_extractor(f"hf:{folder('vit')}", weights="none", seed=5)
    assert other.identity["weights_digest"] != one.identity["weights_digest"]


@pytest.fixture
def cache(folder, tmp_path, monkeypatch):
    """A cache of the hub with the model own/vit, and no network."""
    constants = pytest.importorskip("huggingface_hub.constants")
    root = tmp_path / "cache" / "models--own--vit"
    shutil.copytree(folder("vit"), root / "snapshots" / COMMIT)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_models_of_the_hub_are_recorded_by_commit_and_digest(cache, folder):
    one = build_extractor("hf:own/vit")
    assert one.identity["extractor"] == f"hf:own/vit@{COMMIT}"
    assert one.identity["weights"] == f"hf:{COMMIT}"
    assert build_extractor("hf:own/vit@main").identity == one.identity
    assert build_extractor_from_identity(one.identity).identity == one.identity
    file = f"{folder('vit')}/model.safetensors"
    assert build_extractor_from_identity(one.identity, file).identity == one.identity
    changed = {**one.identity, "weights_digest": "0" * 64}
    with pytest.raises(UserError, match=r"own/vit@0123\S+: its weights must have the digest 000"):
        build_extractor_from_identity(changed)


@pytest.mark.parametrize("name", ["hf:own/other", "hf:own/vit@v2"])
def test_without_network_the_remedy_is_one_line(cache, name):
    with pytest.raises(UserError, match=r"cannot be loaded from the Hugging Face hub: .*hf:FOLDER"):
        build_extractor(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "hf:/no/folder"}, "'/no/folder' is neither a folder nor the name of a model"),
        ({"model": "hf:"}, "'' is neither a folder"),
        ({"model": "hf:./folder"}, "'./folder' is neither a folder"),
        ({"model": "hf:{vit}", "weights": "x"}, "--weights x: is neither a file nor none"),
        ({"model": "hf:{vit}", "weights": "/no/w.pth"}, r"/no/w\.pth: no such file"),
        ({"model": "hf:{vit}", "layer": "x"}, "vit has --grid or not"),
    ],
)
def test_mistakes_are_one_line(folder, options, message):
    options = {name: value.format(vit=folder("vit")) for name, value in options.items()}
    with pytest.raises(UserError, match=message):
        build_backbone(**options)


def test_folders_that_are_no_vision_model_are_refused(folder, tmp_path):
    with pytest.raises(UserError, match=r"the folder has no config\.json"):
        build_hf(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text('{"model_type": "nothing"}')
    with pytest.raises(UserError, match=r"cannot be loaded from the folder: .*nothing"):
        build_hf(f"hf:{tmp_path}")
    transformers.BertConfig(**TEXT).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="reads input_ids, not images"):
        build_hf(f"hf:{tmp_path}")
    source = shutil.copytree(folder("vit"), tmp_path / "vit")
    (source / "model.safetensors").rename(source / "model-00001-of-00002.safetensors")
    with pytest.raises(UserError, match="the weights are missing; the folder must have one of"):
        build_hf(f"hf:{source}")
    (source / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"are in several files \(model\.safetensors\.index\.json\)"
    ):
        build_hf(f"hf:{source}")


def test_files_that_do_not_fit_name_the_tensors(folder, tmp_path):
    path = folder("clip")
    state = safetensors.load_file(f"{path}/model.safetensors")
    name = "vision_model.post_layernorm.bias"
    torch.save({**state, name: torch.ones(3)}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"post_layernorm\.bias is \[3\], but must be \[24\]"):
        build_hf(f"hf:{path}", weights=str(tmp_path / "w.pth"))
    torch.save({**state, name: torch.full((24,), torch.nan)}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"NaN or infinite values in vision_model\.post_layernorm"):
        build_hf(f"hf:{path}", weights=str(tmp_path / "w.pth"))
    del state[name]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"w\.pth: does not fit the model: it lacks vision_model\."):
        build_hf(f"hf:{path}", weights=str(tmp_path / "w.pth"))


def test_files_of_the_images_part_alone_are_enough_and_no_code_is_run(folder, tmp_path):
    path = folder("clip")
    state = safetensors.load_file(f"{path}/model.safetensors")
    expected = build_hf(f"hf:{path}").digest
    images = {name: value.half() for name, value in state.items() if not name.startswith("text")}
    torch.save(images, tmp_path / "w.bin")
    assert build_hf(f"hf:{path}", weights=str(tmp_path / "w.bin")).digest != expected  # rounded
    images = {name: value for name, value in state.items() if not name.startswith("text")}
    torch.save(images, tmp_path / "w.bin")
    assert build_hf(f"hf:{path}", weights=str(tmp_path / "w.bin")).digest == expected
    torch.save({"code": print}, tmp_path / "w.bin")
    with pytest.raises(UserError, match="cannot be loaded safely"):
        build_hf(f"hf:{path}", weights=str(tmp_path / "w.bin"))
    config = json.loads(build_hf(f"hf:{path}").config)
    config |= {"auto_map": {"AutoModel": "own--code.Model"}, "_attn_implementation": "own/kernel"}
    again = build_hf(f"hf:{path}", weights="none", config=json.dumps(config))
    assert "own" not in again.config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": {"height": 32, "width": 40}}, "has options that cannot be recorded"),
        ({"size": {"longest_edge": 40}}, "ViTImageProcessor"),
        ({"resample": 4}, "has options that cannot be recorded"),  # box
        ({"do_pad": True, "pad_size": {"height": 40, "width": 40}}, "does more than resize"),
    ],
)
def test_preprocessing_that_cannot_be_recorded_is_refused(folder, tmp_path, changes, message):
    path = shutil.copytree(folder("vit"), tmp_path / "vit")
    file = path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(UserError, match=message):
        build_hf(f"hf:{path}")


@pytest.mark.parametrize(
    "changes",
    [
        {"do_resize": False, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}},
        {"do_rescale": False, "do_normalize": False},
        {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3},
        {"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": 32, "resample": 1},
    ],
)
def test_every_recorded_option_has_the_processors_effect(folder, tmp_path, changes):
    path = shutil.copytree(folder("vit"), tmp_path / "vit")
    file = path / "preprocessor_config.json"
    settings = {**json.loads(file.read_text()), **changes}
    cls = "CLIPImageProcessor"  # which crops
    file.write_text(json.dumps({**settings, "image_processor_type": cls}))
    preprocessing = build_hf(f"hf:{path}").preprocessing
    processor = transformers.AutoImageProcessor.from_pretrained(path, backend="pil")
    for image in (noise(), noise(33, 60)):
        found = preprocessing.normalized(torch.from_numpy(preprocessing.apply(image)[None].copy()))
        assert_close(found, processor(image, return_tensors="pt")["pixel_values"].float())


def test_a_model_without_pooled_output_is_named(folder, monkeypatch):
    class Output:
        pooler_output = None
        last_hidden_state = torch.zeros(1, 3, 24)

    monkeypatch.setattr(transformers.ViTModel, "forward", lambda self, pixel_values: Output)
    with pytest.raises(UserError, match="vit: has no pooled output; use --grid"):
        build_extractor(f"hf:{folder('vit')}")
    with pytest.raises(UserError, match=r"^--grid: hf:.*vit has neither a feature map nor tokens"):
        build_extractor(f"hf:{folder('vit')}", grid=True)


def test_images_smaller_than_a_patch_are_one_line(folder):
    with pytest.raises(
        UserError, match="hf:dinov2, layer pooler_output: cannot be run on 1 images"
    ):
        build_extractor(f"hf:{folder('dinov2')}", size=4, resize_size=4)


def test_without_transformers_the_extra_is_named(folder, monkeypatch):
    identity = build_extractor(f"hf:{folder('vit')}", weights="none").identity
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"needs the package transformers.*'fairseq-mm\[hf\]'"):
        build_extractor_from_identity(identity)
