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
from fairseq_mm.data.folder_lock import locked_folder
from fairseq_mm.extract.extractor import Extractor
from fairseq_mm.inference import image_indexing
from fairseq_mm.inference.image_index import index_path

SENTENCE = " ".join(WORDS[:3])


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
    assert store.count_sources() == 5
    assert os.listdir(indexed / ".fairseq_mm") == ["index.h5"]


def test_photographs_are_indexed_upright_and_on_white(trained_embedder, index, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    pixels = np.random.default_rng(2).integers(0, 255, (8, 12, 3), np.uint8).repeat(5, 0)
    image = Image.fromarray(pixels)
    image.save(folder / "plain.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    image.rotate(90, expand=True).save(folder / "turned.png", exif=turned)
    transparent = image.convert("RGBA")
    transparent.putalpha(0)
    transparent.save(folder / "transparent.png")
    Image.new("RGB", image.size, "white").save(folder / "white.bmp")
    assert index(folder, "--checkpoint", trained_embedder)[0] == 0
    store = FeatureStore(index_path(folder))
    assert_close(store.read("turned.png"), store.read("plain.png"))
    assert_close(store.read("transparent.png"), store.read("white.bmp"))
    assert abs(store.read("white.bmp") - store.read("plain.png")).max() > 1e-3


def test_an_update_reads_new_and_changed_files_only(photos, index, computed):
    status, out, err = index(photos)
    path = index_path(photos)
    assert (status, out, err) == (0, f"{path}: 5 images, nothing has changed.\n", "")
    assert computed == []
    before = FeatureStore(path)
    vectors = dict(zip(before.ids, before.read_all()))
    shutil.copy(photos / "image1.png", photos / "new.PNG")
    Image.new("RGB", (30, 40), "red").save(photos / "image0.png")
    (photos / "image2.png").unlink()
    os.utime(photos / "image1.png")
    status, out, _ = index(photos)
    assert out == f"{path}: 5 images, 1 new, 1 changed, 1 removed.\n"
    # one image for the dimension of the extractor, then the new and the changed one
    assert computed[-1] == 2
    store = FeatureStore(path)
    assert sorted(store.ids) == [
        *("image0.png", "image1.png", "new.PNG", "sub/image3.png", "sub/image4.png")
    ]
    for name in ("image1.png", "sub/image3.png", "sub/image4.png"):
        np.testing.assert_array_equal(store.read(name)[0], vectors[name])
    assert_close(store.read("new.PNG")[0], vectors["image1.png"])
    assert abs(store.read("image0.png")[0] - vectors["image0.png"]).max() > 1e-3
    # the new time of the same content is recorded, with other changes and without
    assert store.get_source("image1.png").time == (photos / "image1.png").stat().st_mtime_ns
    os.utime(photos / "image1.png", (1, 1))
    assert index(photos)[1] == f"{path}: 5 images, nothing has changed.\n"
    assert FeatureStore(path).get_source("image1.png").time == 10**9
    del computed[:]
    assert index(photos)[1] == f"{path}: 5 images, nothing has changed.\n"
    assert computed == []
    (photos / "image1.png").unlink()
    assert index(photos)[1] == f"{path}: 4 images, 1 removed.\n"
    assert "image1.png" not in FeatureStore(path)


def test_files_that_were_exchanged_are_noticed_although_their_times_are_equal(photos, index):
    pair = [photos / "image0.png", photos / "image1.png"]
    for color, path in zip(("red", "blue"), pair):
        Image.new("RGB", (20, 20), color).save(path, "BMP")
        os.utime(path, (1, 1))
    assert len({path.stat().st_size for path in pair}) == 1
    index(photos)
    former = FeatureStore(index_path(photos)).read("image1.png")
    pair[0].rename(photos / "x")
    pair[1].rename(pair[0])
    (photos / "x").rename(pair[1])
    assert "2 changed" in index(photos)[1]
    assert_close(FeatureStore(index_path(photos)).read("image0.png"), former)


def test_unreadable_images_are_named_and_do_not_stop_the_others(trained_embedder, index, tmp_path):
    folder = tmp_path / "photos"
    save_images(folder)
    (folder / "broken.jpg").write_bytes(b"no image")
    (folder / "empty.png").write_bytes(b"")
    (folder / "a\nb.png").write_bytes(b"x")
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    status, out, err = index(folder, "--checkpoint", trained_embedder)
    assert status == 0
    assert out == f"{index_path(folder)}: 5 images, 5 new; 4 could not be read.\n"
    lines = err.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(f"fairseq-mm index: '{folder}/a\\nb.png': its name must be")
    for line, name, reason in zip(
        lines[1:],
        ("broken.jpg", "empty.png", "gone.png"),
        ("is not an image", "is empty", "No such file"),
    ):
        assert line.startswith(f"fairseq-mm index: {folder}/{name}: {reason}")
    # the same again; then a file is replaced by an image, and an image by a broken file
    assert index(folder)[1].endswith("5 images, nothing has changed; 4 could not be read.\n")
    shutil.copy(folder / "image0.png", folder / "empty.png")
    (folder / "image1.png").write_bytes(b"no image")
    assert "5 images, 1 new, 1 removed; 4 could not be read" in index(folder)[1]


def test_a_folder_without_any_readable_image_gets_no_index(trained_embedder, index, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    status, out, err = index(tmp_path, "--checkpoint", trained_embedder)
    assert (status, out) == (2, "")
    assert "none of the 1 images can be read" in one_line(err)
    assert os.listdir(tmp_path) == ["broken.jpg"]


def interrupt_after(monkeypatch, number):
    append = image_indexing.FeatureStoreWriter.append
    left = [number]

    def interrupted(self, *arguments):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        append(self, *arguments)

    monkeypatch.setattr(image_indexing.FeatureStoreWriter, "append", interrupted)


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
    # one image changes, one vanishes: their vectors are not taken
    Image.new("RGB", (30, 40), "red").save(folder / "image0.png")
    (folder / "image1.png").unlink()
    del computed[:]
    status, out, err = index(folder, "--checkpoint", trained_embedder)
    assert (status, err) == (0, "")
    assert out == f"{index_path(folder)}: 4 images, 4 new.\n"
    assert computed[-1] == 2
    assert os.listdir(folder / ".fairseq_mm") == ["index.h5"]
    store = FeatureStore(index_path(folder))
    store.check_content()
    embedder = from_pretrained(trained_embedder, device="cpu", kind="embedder")
    for name in store.ids:
        assert_close(store.read(name)[0], embedder.embed_images([str(folder / name)])[0])
        assert store.get_source(name).time == (folder / name).stat().st_mtime_ns


def test_an_interrupted_update_keeps_the_former_index(photos, index, search, monkeypatch):
    shutil.copy(photos / "image1.png", photos / "new.png")
    before = search(photos, SENTENCE)[1]
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3)
        assert index(photos)[0] == 130
    assert search(photos, SENTENCE)[1] == before
    assert "6 images, 1 new." in index(photos)[1]
    assert len(search(photos, SENTENCE)[1].splitlines()) == 6
    # what an interrupted run has left is removed, although there is nothing to do any more
    shutil.copy(photos / "image1.png", photos / "other.png")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        assert index(photos)[0] == 130
    (photos / "other.png").unlink()
    assert "6 images, nothing has changed" in index(photos)[1]
    assert os.listdir(photos / ".fairseq_mm") == ["index.h5"]


def test_another_checkpoint_is_refused_until_the_index_is_rebuilt(
    trained_embedder, photos, index, search, tmp_path, monkeypatch, computed
):
    other = tmp_path / "other"
    shutil.copytree(trained_embedder, other)
    state = torch.load(trained_embedder / "checkpoint_best.pt", weights_only=False)
    state["model"]["image_proj.weight"] += 1
    torch.save(state, other / "checkpoint_best.pt")
    content = (photos / ".fairseq_mm" / "index.h5").read_bytes()
    status, _, err = index(photos, "--checkpoint", other)
    assert status == 2
    assert one_line(err).endswith(
        "or index all images anew: fairseq-mm index FOLDER --checkpoint PATH --rebuild."
    )
    assert "--rebuild: does not read the former index" in one_line(index(photos, "--rebuild")[2])
    status, _, err = search(photos, SENTENCE, "--checkpoint", other)
    assert status == 2
    assert "was made with the checkpoint" in one_line(err)
    assert (photos / ".fairseq_mm" / "index.h5").read_bytes() == content
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        assert index(photos, "--checkpoint", other, "--rebuild")[0] == 130
    # neither checkpoint continues the work of the other
    shutil.copy(photos / "image0.png", photos / "new.png")
    status, _, err = index(photos, "--checkpoint", trained_embedder)
    assert status == 2
    assert "was begun with another checkpoint" in one_line(err)
    del computed[:]
    status, out, _ = index(photos, "--checkpoint", other, "--rebuild")
    assert (status, out) == (0, f"{index_path(photos)}: 6 images, 6 new.\n")
    assert computed[-1] == 4  # of six, two of the interrupted run
    assert search(photos, SENTENCE)[0] == 0
    assert search(photos, SENTENCE, "--checkpoint", other)[0] == 0
    assert search(photos, SENTENCE, "--checkpoint", trained_embedder)[0] == 2
    # a rebuild drops what a run with another checkpoint has left
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        assert index(photos, "--checkpoint", other, "--rebuild")[0] == 130
    del computed[:]
    assert index(photos, "--checkpoint", trained_embedder, "--rebuild")[0] == 0
    assert computed[-1] == 6
    assert search(photos, SENTENCE)[0] == 0


def test_a_checkpoint_that_was_trained_again_is_noticed(trained_embedder, index, search, tmp_path):
    folder, model = tmp_path / "photos", tmp_path / "model"
    save_images(folder, count=2)
    shutil.copytree(trained_embedder, model)
    file = model / "checkpoint_best.pt"
    state = torch.load(file, weights_only=False)
    torch.save(state, file)
    former = shutil.copytree(model, tmp_path / "former")
    index(folder, "--checkpoint", model)
    os.utime(file)  # the same content
    assert search(folder, SENTENCE)[0] == 0
    assert index(folder)[0] == 0
    state["model"]["image_proj.weight"] += 1
    # another checkpoint has the same size, and the time that the index records
    other = tmp_path / file.name
    torch.save(state, other)
    assert other.stat().st_size == file.stat().st_size
    shutil.copystat(file, other)
    status, _, err = search(folder, SENTENCE, "--checkpoint", other)
    assert status == 2
    assert "was made with the checkpoint" in one_line(err)
    torch.save(state, file)
    assert file.stat().st_size == (former / file.name).stat().st_size
    for status, _, err in (search(folder, SENTENCE), index(folder)):
        assert status == 2
        assert "was made with the checkpoint" in one_line(err)
    shutil.rmtree(model)
    for status, _, err in (search(folder, SENTENCE), index(folder)):
        assert status == 2
        assert "which is not there any more: give its path (--checkpoint PATH" in one_line(err)
    assert search(folder, SENTENCE, "--checkpoint", former)[0] == 0
    # the new path is recorded
    assert index(folder, "--checkpoint", former)[0] == 0
    assert search(folder, SENTENCE)[0] == 0


def rewrite_index(path, *, factor=1, dtype="float32", has_sources=True, **attributes):
    """Writes an index again with other content, to which its checksums belong."""
    store = FeatureStore(path)
    attributes = {**store.attributes, **attributes}
    for name in ("created", "package_version"):
        del attributes[name]
    with image_indexing.FeatureStoreWriter(
        path, dim=store.dim, dtype=dtype, attributes=attributes, overwrite=True
    ) as writer:
        for key in store.ids:
            source = store.get_source(key) if has_sources else None
            writer.append(key, factor * store.read(key), source)
        writer.add_attributes({"vectors_checksum": writer.compute_rows_checksum()})
        writer.finish()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"factor": 1.01}, "its vectors are damaged"),
        ({"factor": 0.99}, "its vectors are damaged"),
        ({"dtype": "float16"}, "its vectors are damaged"),
        ({"has_sources": False}, "has no record of some images"),
    ],
)
def test_other_content_is_refused_although_its_checksums_match(photos, search, change, reason):
    expected = search(photos, SENTENCE)
    rewrite_index(index_path(photos))
    assert search(photos, SENTENCE) == expected
    rewrite_index(index_path(photos), **change)
    status, out, err = search(photos, SENTENCE)
    assert (status, out) == (2, "")
    assert reason in one_line(err)
    assert "fairseq-mm index FOLDER --checkpoint PATH --rebuild" in err


def test_an_index_of_another_extractor_is_refused(photos, index):
    rewrite_index(index_path(photos), image_extractor="{}")
    status, _, err = index(photos)
    assert status == 2
    assert "another image extractor" in one_line(err)
    assert "--rebuild" in err


def test_a_folder_may_be_moved_with_its_index(photos, index, search):
    moved = photos.with_name("elsewhere")
    photos.rename(moved)
    status, out, err = search(moved, SENTENCE)
    assert (status, err) == (0, "")
    assert all(str(moved) in line for line in out.splitlines())
    assert "nothing has changed" in index(moved)[1]


def test_an_index_may_lie_elsewhere(trained_embedder, photos, index, search, tmp_path, monkeypatch):
    expected = search(photos, SENTENCE)[1]
    shutil.rmtree(photos / ".fairseq_mm")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *arguments: False)
        status, _, err = index(photos, "--checkpoint", trained_embedder)
    assert status == 2
    assert one_line(err) == (
        f"fairseq-mm index: {photos}/.fairseq_mm: the index cannot be written there (Permission "
        "denied): give the path of a file elsewhere (--output FILE; in Python index=...)."
    )
    assert not (photos / ".fairseq_mm").exists()
    path = tmp_path / "elsewhere.h5"
    assert index(photos, "--checkpoint", trained_embedder, "--output", path)[0] == 0
    assert search(photos, SENTENCE, "--index", path)[1] == expected
    assert "nothing has changed" in index(photos, "--output", path)[1]
    assert not (photos / ".fairseq_mm").exists()
    status, _, err = search(photos, SENTENCE)
    assert status == 2
    assert f"Make it first: fairseq-mm index {photos} --checkpoint PATH." in one_line(err)
    status, _, err = index(photos, "--output", tmp_path / "none" / "i.h5")
    assert "there is no folder" in one_line(err)


def test_the_extractors_weights_may_lie_elsewhere(trained_embedder, index, search, tmp_path):
    folder, model = tmp_path / "photos", tmp_path / "model"
    image = save_images(folder, count=2)[0]
    model.mkdir()
    shutil.copy(trained_embedder / "checkpoint_best.pt", model)
    status, _, err = index(folder, "--checkpoint", model)
    assert status == 2
    assert "--weights FILE" in one_line(err)
    assert not (folder / ".fairseq_mm").exists()
    weights = tmp_path / "weights.pth"
    shutil.copy(trained_embedder / "squeezenet.pth", weights)
    assert index(folder, "--checkpoint", model, "--weights", weights)[0] == 0
    # the index records their path
    assert search(folder, "--image", image)[0] == 0
    shutil.copy(image, folder / "new.png")
    assert index(folder)[0] == 0
    weights.rename(tmp_path / "moved.pth")
    assert search(folder, SENTENCE)[0] == 0
    assert search(folder, "--image", image)[0] == 2
    assert search(folder, "--image", image, "--weights", tmp_path / "moved.pth")[0] == 0
    status, _, err = search(folder, SENTENCE, "--weights", tmp_path / "moved.pth")
    assert (status, "--weights: needs --image" in one_line(err)) == (2, True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: b"",
        lambda content: b"no store",
        lambda content: b"\0" * len(content),
    ],
)
def test_a_damaged_index_is_refused_until_it_is_rebuilt(
    photos, index, search, trained_embedder, damage
):
    path = photos / ".fairseq_mm" / "index.h5"
    path.write_bytes(damage(path.read_bytes()))
    for status, out, err in (search(photos, SENTENCE), index(photos)):
        assert (status, out) == (2, "")
        assert "fairseq-mm index FOLDER --checkpoint PATH --rebuild" in one_line(err)
    assert index(photos, "--checkpoint", trained_embedder, "--rebuild")[0] == 0
    assert search(photos, SENTENCE)[0] == 0


def test_other_stores_are_no_index(photos, search, index, tmp_path, trained_embedder):
    path = tmp_path / "features.h5"
    write_store(path, ["image0.png"])
    embedded = tmp_path / "embedded.h5"
    data = trained_embedder / "data.moved"
    command = [
        "embed",
        data,
        "--checkpoint",
        trained_embedder,
        "--output",
        embedded,
        "--of",
        "words",
    ]
    assert main([*map(str, command)]) in (0, None)
    for store in (path, embedded):
        for status, _, err in (
            search(photos, SENTENCE, "--index", store),
            index(photos, "--output", store),
        ):
            assert status == 2
            assert "but no index of fairseq-mm index" in one_line(err)
    # nor are they, or other files, replaced
    for other in (path, embedded, photos / "image0.png"):
        content = other.read_bytes()
        options = ["--checkpoint", trained_embedder, "--rebuild", "--output", other]
        status, _, err = index(photos, *options)
        assert status == 2
        assert "is no index, and is not replaced" in one_line(err)
        assert other.read_bytes() == content
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes((photos / ".fairseq_mm" / "index.h5").read_bytes()[:-100])
    options = ["--checkpoint", trained_embedder, "--rebuild", "--output", damaged]
    assert index(photos, *options)[0] == 0


def test_wrong_folders_and_checkpoints_are_one_line(
    trained_embedder, trained_captioner, photos, index, search, tmp_path
):
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder, message in (
        (tmp_path / "none", "no such folder"),
        (photos / "image0.png", "is a file, but must be a folder"),
        (empty, "no images found"),
    ):
        status, out, err = index(folder, "--checkpoint", trained_embedder)
        assert (status, out) == (2, "")
        assert message in one_line(err)
    assert os.listdir(empty) == []
    assert "no such folder" in one_line(search(tmp_path / "none", SENTENCE)[2])
    shutil.rmtree(photos / ".fairseq_mm")
    assert "must embed images and sentences" in one_line(
        index(photos, "--checkpoint", trained_captioner)[2]
    )
    assert "has no index yet: give the checkpoint" in one_line(index(photos)[2])
    assert not (photos / ".fairseq_mm").exists()


def test_two_runs_do_not_write_one_index(photos, index):
    shutil.copy(photos / "image1.png", photos / "new.png")
    with locked_folder(f"{index_path(photos)}.partial"):
        status, _, err = index(photos)
    assert status == 2
    assert "another process is writing to it" in one_line(err)
