"""Networks that timm and transformers download from the hub, and its errors in one line."""

from pathlib import Path

import pytest
import torch
from hub_server import Repository

from fairseq_mm.errors import UserError
from fairseq_mm.extract import library_networks
from fairseq_mm.extract.extractor import build_extractor, build_extractor_from_identity

timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture
def vit(tmp_path):
    """The files of a small ViT of transformers."""
    folder = tmp_path / "vit"
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, intermediate_size=8, image_size=32, patch_size=16)
    torch.manual_seed(1)
    transformers.ViTModel(config).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_model_of_transformers_is_downloaded_once_and_named_by_its_commit(hub, vit):
    repository = hub.repositories["own/vit"] = Repository()
    first = repository.commit("main", vit)
    one = build_extractor("hf:own/vit")
    assert one.identity["extractor"] == f"hf:own/vit@{first}"
    # a checkpoint's features stay those of the first commit
    repository.commit("main", {"config.json": b"{}"})
    again = build_extractor_from_identity(one.identity)
    assert again.identity == one.identity
    with pytest.raises(UserError, match="cannot be loaded from the Hugging Face hub: "):
        build_extractor("hf:own/vit@main")
    for name, message in (
        ("own/vit@v9", "there is no such revision"),
        ("own/vet", "there is no such model, or it is private"),
        ("own/gated", "its owner gives access on request only"),
    ):
        hub.repositories["own/gated"] = Repository(is_gated=True)
        with pytest.raises(UserError, match=message):
            build_extractor(f"hf:{name}")


def test_weights_of_timm_are_downloaded_and_refused_if_they_have_changed(hub, tmp_path):
    repository = hub.repositories["timm/test_vit.r160_in1k"] = Repository()
    torch.manual_seed(1)
    state = timm.create_model("test_vit").state_dict()

    def publish():
        safetensors.save_file(state, tmp_path / "w")
        repository.commit("main", {"model.safetensors": Path(tmp_path / "w").read_bytes()})

    publish()
    one = build_extractor("timm:test_vit")
    assert one.identity["weights"] == "timm:r160_in1k"
    assert build_extractor_from_identity(one.identity).identity == one.identity
    state["norm.bias"] = state["norm.bias"] + 1
    publish()
    with pytest.raises(UserError, match=r"test_vit\.r160_in1k: its weights must have the digest"):
        build_extractor_from_identity(one.identity)


def test_without_an_address_of_the_hub_only_the_cache_is_read(hub, vit, monkeypatch):
    hub.repositories["own/vit"] = Repository()
    hub.repositories["own/vit"].commit("main", vit)
    one = build_extractor("hf:own/vit")
    hub.requests.clear()

    def fail(*_):
        raise OSError("Name or service not known")

    monkeypatch.setattr(library_networks.socket, "getaddrinfo", fail)
    monkeypatch.setattr(library_networks.urllib.request, "getproxies", dict)
    assert build_extractor("hf:own/vit").identity == one.identity
    with pytest.raises(UserError, match=r"there is no network, and .* cache does not have it"):
        build_extractor("hf:own/other")
    assert hub.requests == []
