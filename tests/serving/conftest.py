"""A server with small models of all kinds, on a free port."""

import threading
from pathlib import Path

import pytest
from toy_captioner import EMBEDDER, save_images, train_captioner
from toy_summarizer import train_video_summarizer
from toy_text_models import save_text_model
from toy_visual_stories import save_pixel_story_model

from fairseq_mm.inference.image_indexing import index_folder

# `served` is imported in the fixtures: it skips the test where a package of the server is missing


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Name of a system -> folder of its checkpoint."""
    folder = tmp_path_factory.mktemp("served")
    for name in ("captions", "video"):
        (folder / name).mkdir()
    train_captioner(folder / "captions", folder / "captions" / "data")
    save_pixel_story_model(folder / "album")
    save_text_model(folder / "story" / "checkpoint_best.pt")
    save_text_model(folder / "text" / "checkpoint_best.pt", "gcnn_lm_tiny")
    pytest.importorskip("av")
    train_video_summarizer(folder / "video", folder / "video" / "data")
    return {name: folder / name for name in ("captions", "album", "story", "text", "video")}


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    return [Path(path) for path in save_images(tmp_path_factory.mktemp("pictures") / "images")]


@pytest.fixture
def gate(systems, monkeypatch):
    """A gate of the captioner."""
    from served import Gate

    gate = Gate(systems[0], monkeypatch)
    yield gate
    gate.open()


@pytest.fixture
def together():
    """Calls functions in threads of their own; a call returns before they end."""
    threads = []

    def start(*calls):
        new = [threading.Thread(target=call) for call in calls]
        threads.extend(new)
        for thread in new:
            thread.start()

    yield start
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def album(tmp_path_factory):
    """A folder of images with its index."""
    folder = tmp_path_factory.mktemp("indexed")
    train_captioner(folder, folder / "data", EMBEDDER)
    save_images(folder / "photos")
    index_folder(folder / "photos", folder, device="cpu")
    return folder / "photos"


@pytest.fixture(scope="session")
def systems(models, album):
    from served import Limits, load_indexes, load_systems

    names = [(name, str(path)) for name, path in models.items()]
    systems = list(load_systems(names, Limits(), device="cpu"))
    return systems + list(load_indexes([("", str(album))], Limits(), device="cpu"))


@pytest.fixture(scope="session")
def client(systems):
    from served import Limits, running

    with running(systems, Limits()) as client:
        yield client
