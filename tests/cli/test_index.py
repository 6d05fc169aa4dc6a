"""``fairseq-mm index``: vectors, updates, interruptions and refusals."""

import os
import shutil

import numpy as np
import pytest
import torch
from numerics import assert_close
from PIL import Image
from toy_captioner import save_images
from toy_data import WORDS, write_store

from fairseq_mm import from_pretrained
from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.extract.extractor import Extractor
from fairseq_mm.inference import image_index
from fairseq_mm.inference.image_index import index_path

SENTENCE = " ".join(WORDS[:3])
NOTHING = "0 new, 0 changed, 0 removed"


@pytest.fixture
def computed(monkeypatch):
    """Number of images in each batch that the network computes."""
    counts = []
    rows_of_each = Extractor.rows_of_each

    def count(self, inputs):
        counts.extend([len(inputs)] if inputs else [])
        return rows_of_each(self, inputs)

    monkeypatch.setattr(Extractor, "rows_of_each", count)
    return counts


def one_line(text):
    (line,) = text.splitlines()
    return line


def test_an_index_has_the_vectors_of_the_models_own_function(trained_embedder, indexed):
    store = FeatureStore(index_path(indexed))
    names = ["image0.png", "image1.png", "image2.png", "sub/image3.png", "sub/image4.png"]
    assert store.ids == names
    embedder = from_pretrained(trained_embedder, device="cpu", kind="embedder")
    expected = embedder.embed_images([str(indexed / name) for name in names])
    assert_close(store.read_all(), expected)
    assert store.attributes["weights"] == embedder.digest
    assert sum(store.get_source(key) is not None for key in store.ids) == 5
    assert os.listdir(indexed / ".fairseq_mm") == ["index.h5"]


def test_unreadable_images_are_named_and_do_not_stop_the_others(trained_embedder, index, tmp_path):
    folder = tmp_path / "photos"
    save_images(folder)
    (folder / "broken.jpg").write_bytes(b"no image")
    (folder / "empty.png").write_bytes(b"")
    (folder / "a\nb.png").write_bytes(b"x")
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    status, out, err = index(folder, "--checkpoint", trained_embedder)
    assert status == 0
    assert out == f"{index_path(folder)}: 5 images, 5 new, 0 changed, 0 removed, 4 unreadable.\n"
    lines = err.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(f"fairseq-mm index: '{folder}/a\\nb.png': its name must be")
    for line, name, reason in zip(
        lines[1:],
        ("broken.jpg", "empty.png", "gone.png"),
        ("is not an image", "is not an image", "cannot be read (No such file"),
    ):
        assert line.startswith(f"fairseq-mm index: {folder}/{name}: {reason}")
    # the same again; then a file is replaced by an image, and an image by a broken file
    assert index(folder)[1].endswith(f"5 images, {NOTHING}, 4 unreadable.\n")
    shutil.copy(folder / "image0.png", folder / "empty.png")
    (folder / "image1.png").write_bytes(b"no image")
    assert "5 images, 1 new, 0 changed, 1 removed, 4 unreadable" in index(folder)[1]


def interrupt_after(monkeypatch, number):
    append = image_index.FeatureStoreWriter.append
    left = [number]

    def interrupted(self, *arguments):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        append(self, *arguments)

    monkeypatch.setattr(image_index.FeatureStoreWriter, "append", interrupted)


def test_an_interrupted_run_is_continued(
    trained_embedder, indexed, index, tmp_path, monkeypatch, computed
):
    folder = tmp_path / "photos"
    shutil.copytree(indexed, folder, ignore=shutil.ignore_patterns(".fairseq_mm"))
    with monkeypatch.context() as patch:
        interrupt_after(patch, 4)
        status, out, err = index(folder, "--checkpoint", trained_embedder)
    assert (status, out) == (130, "")
    assert "interrupted: the same command continues" in err
    # one image changes, one vanishes: nothing of the interrupted run is taken
    Image.new("RGB", (30, 40), "red").save(folder / "image0.png")
    (folder / "image1.png").unlink()
    del computed[:]
    status, out, err = index(folder, "--checkpoint", trained_embedder)
    assert (status, err) == (0, "")
    assert out == f"{index_path(folder)}: 4 images, 4 new, 0 changed, 0 removed, 0 unreadable.\n"
    assert computed[-1] == 4
    assert os.listdir(folder / ".fairseq_mm") == ["index.h5"]
    store = FeatureStore(index_path(folder))
    store.check_content()
    embedder = from_pretrained(trained_embedder, device="cpu", kind="embedder")
    for name in store.ids:
        assert_close(store.read(name)[0], embedder.embed_images([str(folder / name)])[0])
        assert store.get_source(name).time == (folder / name).stat().st_mtime_ns


def test_an_update_reads_new_and_changed_files_only(photos, index, computed):
    path = index_path(photos)
    assert index(photos) == (0, f"{path}: 5 images, {NOTHING}, 0 unreadable.\n", "")
    assert computed == []
    before = FeatureStore(path)
    vectors = dict(zip(before.ids, before.read_all()))
    shutil.copy(photos / "image1.png", photos / "new.PNG")
    Image.new("RGB", (30, 40), "red").save(photos / "image0.png")
    (photos / "image2.png").unlink()
    os.utime(photos / "image1.png")  # the same content
    assert "5 images, 1 new, 1 changed, 1 removed" in index(photos)[1]
    # one image for the dimension of the extractor, then the new and the changed one
    assert computed[-1] == 2
    store = FeatureStore(path)
    for name in ("image1.png", "sub/image3.png", "sub/image4.png"):
        np.testing.assert_array_equal(store.read(name)[0], vectors[name])
    assert_close(store.read("new.PNG")[0], vectors["image1.png"])
    assert abs(store.read("image0.png")[0] - vectors["image0.png"]).max() > 1e-3


def test_an_interrupted_update_keeps_the_former_index(photos, index, search, monkeypatch):
    shutil.copy(photos / "image1.png", photos / "new.png")
    before = search(photos, SENTENCE)[1]
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3)
        assert index(photos)[0] == 130
    assert search(photos, SENTENCE)[1] == before
    assert "6 images, 1 new" in index(photos)[1]
    assert len(search(photos, SENTENCE)[1].splitlines()) == 6


def test_an_index_of_another_checkpoint_is_refused(
    trained_embedder, photos, index, search, tmp_path
):
    other = shutil.copytree(trained_embedder, tmp_path / "other")
    state = torch.load(trained_embedder / "checkpoint_best.pt", weights_only=False)
    state["model"]["image_proj.weight"] += 1
    torch.save(state, other / "checkpoint_best.pt")
    content = (photos / ".fairseq_mm" / "index.h5").read_bytes()
    for command in (search, index):
        arguments = [SENTENCE] if command is search else []
        status, _, err = command(photos, *arguments, "--checkpoint", other)
        assert status == 2
        assert "must have vectors that fairseq-mm embed made" in one_line(err)
    assert (photos / ".fairseq_mm" / "index.h5").read_bytes() == content
    (photos / ".fairseq_mm" / "index.h5").unlink()
    assert index(photos, "--checkpoint", other)[0] == 0
    assert search(photos, SENTENCE)[0] == 0
    # the same path, but trained again
    shutil.copy(trained_embedder / "checkpoint_best.pt", other)
    assert "must have vectors that fairseq-mm embed made" in one_line(search(photos, SENTENCE)[2])
    shutil.rmtree(other)
    assert "is missing: give the checkpoint" in one_line(search(photos, SENTENCE)[2])


def test_other_stores_are_not_replaced(photos, index, tmp_path, trained_embedder):
    features, embedded = tmp_path / "features.h5", tmp_path / "embedded.h5"
    write_store(features, ["image0.png"])
    data = str(trained_embedder / "data.moved")
    options = ["--checkpoint", str(trained_embedder), "--output", str(embedded), "--of", "words"]
    assert main(["embed", data, *options]) in (0, None)
    for path in (features, embedded):
        content = path.read_bytes()
        status, _, err = index(photos, "--checkpoint", trained_embedder, "--output", path)
        assert status == 2
        assert "but no index of fairseq-mm index" in one_line(err)
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("folder", "checkpoint", "message"),
    [
        ("none", "trained_embedder", "cannot be read (No such file"),
        ("photos/image0.png", "trained_embedder", "cannot be read (Not a directory"),
        ("empty", "trained_embedder", "empty: has no image that can be read"),
        ("broken", "trained_embedder", "broken: has no image that can be read: "),
        ("photos", "trained_captioner", "is a model of fairseq-mm caption, not of fairseq-mm rank"),
        ("photos", None, "no index yet: give the checkpoint"),
    ],
)
def test_wrong_folders_and_checkpoints(
    photos, index, tmp_path, request, folder, checkpoint, message
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "broken.jpg").write_bytes(b"no image")
    shutil.rmtree(photos / ".fairseq_mm")
    options = ["--checkpoint", request.getfixturevalue(checkpoint)] if checkpoint else []
    status, out, err = index(tmp_path / folder, *options)
    assert (status, out) == (2, "")
    assert message in one_line(err)
