"""A small exported model, and a server of the hub with its own cache."""

import shutil

import pytest
from hub_server import HubServer
from toy_text_models import save_text_model

pytest.importorskip("safetensors")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A story model's checkpoint."""
    return save_text_model(tmp_path_factory.mktemp("story") / "checkpoint_best.pt")


@pytest.fixture(scope="session")
def folder(checkpoint, tmp_path_factory):
    """The model folder of ``checkpoint``; tests do not change it."""
    from fairseq_mm.hub.export import export_checkpoint
    from fairseq_mm.inference.checkpoint import Checkpoint

    path = tmp_path_factory.mktemp("exported") / "story"
    export_checkpoint(Checkpoint.open(checkpoint), str(path))
    return path


@pytest.fixture
def own(folder, tmp_path):
    """A copy of the model folder, which a test may change."""
    return shutil.copytree(folder, tmp_path / "own")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The server, whose address huggingface_hub takes for the hub's."""
    constants = pytest.importorskip("huggingface_hub.constants")
    hf_api = pytest.importorskip("huggingface_hub.hf_api")
    server = HubServer()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.setattr(hf_api.api, "endpoint", server.url)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    yield server
    # the library keeps connections open, and would log their end when the process exits
    utils = pytest.importorskip("huggingface_hub.utils")
    getattr(utils, "close_session", int)()  # older versions keep none
    server.close()
