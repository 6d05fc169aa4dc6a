"""``fairseq-mm index`` and ``search``: results, updates, interruptions and refusals."""

import json
import os
import re
import shutil
import threading
import urllib.parse

import numpy as np
import pytest
import torch
from numerics import assert_close
from PIL import Image
from toy_captioner import EMBEDDER, save_images, train_captioner
from toy_data import WORDS, write_store

from fairseq_mm import from_pretrained
from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.folder_lock import locked_folder
from fairseq_mm.extract.extractor import Extractor
from fairseq_mm.inference import image_index, image_indexing
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.inference.embedder import Embedder
from fairseq_mm.inference.image_index import ImageIndex, index_path

SENTENCE = " ".join(WORDS[:3])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train_captioner(folder, folder / "data", EMBEDDER)
    return folder


@pytest.fixture(scope="module")
def captioner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captioner")
    train_captioner(folder, folder / "data")
    return folder


@pytest.fixture(scope="module")
def indexed(trained, tmp_path_factory):
    """A folder with five images, two of them in a subfolder, and its index."""
    folder = tmp_path_factory.mktemp("indexed") / "photos"
    save_images(folder)
    (folder / "sub").mkdir()
    for name in ("image3.png", "image4.png"):
        (folder / name).rename(folder / "sub" / name)
    assert main(["index", str(folder), "--checkpoint", str(trained), "--device", "cpu"]) == 0
    return folder


@pytest.fixture
def photos(indexed, tmp_path):
    """A copy of the folder with its index, which a test may change."""
    return shutil.copytree(indexed, tmp_path / "photos")


@pytest.fixture
def index(run_command):
    def run(*arguments):
        return run_command("index", *arguments, "--device", "cpu")

    return run


@pytest.fixture
def search(run_command):
    def run(*arguments):
        return run_command("search", *arguments)

    return run


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


def names_of(output):
    return [os.path.basename(line.split("\t")[2]) for line in output.splitlines()]


def test_an_index_has_the_vectors_of_the_models_own_function(trained, indexed):
    store = FeatureStore(index_path(indexed))
    names = ["image0.png", "image1.png", "image2.png", "sub/image3.png", "sub/image4.png"]
    assert store.ids == names
    embedder = from_pretrained(trained, device="cpu", kind="embedder")
    expected = embedder.embed_images([str(indexed / name) for name in names])
    assert_close(store.read_all(), expected)
    assert store.attributes["weights"] == embedder.digest
    assert store.count_sources() == 5
    assert os.listdir(indexed / ".fairseq_mm") == ["index.h5"]


def test_photographs_are_indexed_upright_and_on_white(trained, index, tmp_path):
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
    assert index(folder, "--checkpoint", trained)[0] == 0
    store = FeatureStore(index_path(folder))
    assert_close(store.read("turned.png"), store.read("plain.png"))
    assert_close(store.read("transparent.png"), store.read("white.bmp"))
    assert abs(store.read("white.bmp") - store.read("plain.png")).max() > 1e-3


def test_a_search_ranks_by_the_cosine(trained, indexed, search):
    embedder = from_pretrained(trained, device="cpu", kind="embedder")
    paths = sorted(str(path) for path in indexed.rglob("*.png"))
    cosines = embedder.embed_images(paths) @ embedder.embed_texts([SENTENCE])[0]
    order = np.argsort(-cosines)
    status, out, err = search(indexed, SENTENCE)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"{rank}\t{cosines[i]:.4f}\t{paths[i]}" for rank, i in enumerate(order, 1)
    ]
    status, out, _ = search(indexed, SENTENCE, "--count", 2)
    assert names_of(out) == [os.path.basename(paths[i]) for i in order[:2]]


def test_several_queries_are_answered_one_after_the_other(indexed, search, tmp_path):
    first, second = search(indexed, WORDS[0])[1], search(indexed, WORDS[1])[1]
    image = str(indexed / "sub" / "image4.png")
    status, out, _ = search(indexed, WORDS[0], WORDS[1], "--image", image)
    lines = out.splitlines()
    assert lines[:12] == [WORDS[0], *first.splitlines(), WORDS[1], *second.splitlines()]
    assert lines[12] == image
    assert lines[13] == f"1\t1.0000\t{image}"
    # sentences before and after options
    mixed = search(indexed, WORDS[0], "--image", image, WORDS[1])
    assert mixed == (status, out, "")
    target = tmp_path / "found.jsonl"
    status, out, err = search(indexed, WORDS[0], WORDS[1], "--count", 3, "--output", target)
    assert (status, out, err) == (0, "", f"wrote {target}: 6 images\n")
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert [record["query"] for record in records] == [WORDS[0]] * 3 + [WORDS[1]] * 3
    assert [record["rank"] for record in records] == [1, 2, 3, 1, 2, 3]
    for record, line in zip(records[:3], first.splitlines()):
        assert line == f"{record['rank']}\t{record['score']:.4f}\t{record['path']}"
        assert record["path"] == os.path.join(indexed, record["id"])
    status, out, _ = search(indexed, WORDS[0], WORDS[1], "--count", 3, "--jsonl")
    assert out == target.read_text()


def test_a_sentence_needs_neither_the_network_nor_a_digest(indexed, search, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("not needed for a sentence")

    monkeypatch.setattr(Embedder, "_build_extractor", refuse)
    monkeypatch.setattr(Checkpoint, "digest", property(refuse))
    monkeypatch.setattr("fairseq_mm.extract.hashed_file._digest", refuse)
    assert search(indexed, SENTENCE)[0] == 0


def test_words_outside_the_vocabulary_are_named_and_left_out(indexed, search):
    _, expected, _ = search(indexed, SENTENCE)
    status, out, err = search(indexed, f"Zebra, {SENTENCE} quagga! zebra")
    assert (status, out) == (0, expected)
    assert one_line(err).endswith("left out words that the model does not know: zebra, quagga")
    status, out, err = search(indexed, SENTENCE, "zebra quagga")
    assert (status, out) == (2, "")
    assert "'zebra quagga' has no word that is in the dictionary" in one_line(err)


@pytest.mark.parametrize("query", ["", "  ", "?!"])
def test_an_empty_query_is_refused(indexed, search, query):
    status, out, err = search(indexed, query)
    assert (status, out) == (2, "")
    assert "must" in one_line(err)


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
    # the new time of the copied content is recorded
    assert store.get_source("image1.png").time == (photos / "image1.png").stat().st_mtime_ns
    del computed[:]
    assert index(photos)[1] == f"{path}: 5 images, nothing has changed.\n"
    assert computed == []


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


def test_unreadable_images_are_named_and_do_not_stop_the_others(trained, index, tmp_path):
    folder = tmp_path / "photos"
    save_images(folder)
    (folder / "broken.jpg").write_bytes(b"no image")
    (folder / "empty.png").write_bytes(b"")
    (folder / "a\nb.png").write_bytes(b"x")
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    status, out, err = index(folder, "--checkpoint", trained)
    assert status == 0
    assert out == f"{index_path(folder)}: 5 images, 5 new; 4 could not be read.\n"
    lines = err.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(f"fairseq-mm index: '{folder}/a\\nb.png': its name must be")
    for line, name, reason in zip(
        lines[1:],
        ("broken.jpg", "empty.png", "gone.png"),
        ("is no image", "is empty", "No such file"),
    ):
        assert line.startswith(f"fairseq-mm index: {folder}/{name}: {reason}")
    # the same again; then a file is replaced by an image, and an image by a broken file
    assert index(folder)[1].endswith("5 images, nothing has changed; 4 could not be read.\n")
    shutil.copy(folder / "image0.png", folder / "empty.png")
    (folder / "image1.png").write_bytes(b"no image")
    assert "5 images, 1 new, 1 removed; 4 could not be read" in index(folder)[1]


def test_a_folder_without_any_readable_image_gets_no_index(trained, index, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    status, out, err = index(tmp_path, "--checkpoint", trained)
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


def test_an_interrupted_run_is_continued(trained, indexed, index, tmp_path, monkeypatch, computed):
    folder = tmp_path / "photos"
    shutil.copytree(indexed, folder, ignore=shutil.ignore_patterns(".fairseq_mm"))
    with monkeypatch.context() as patch:
        interrupt_after(patch, 4)
        status, out, err = index(folder, "--checkpoint", trained)
    assert (status, out) == (130, "")
    assert "interrupted: the same command continues" in err
    # one image changes, one vanishes: their vectors are not taken
    Image.new("RGB", (30, 40), "red").save(folder / "image0.png")
    (folder / "image1.png").unlink()
    del computed[:]
    status, out, err = index(folder, "--checkpoint", trained)
    assert (status, err) == (0, "")
    assert out == f"{index_path(folder)}: 4 images, 4 new.\n"
    assert computed[-1] == 2
    assert os.listdir(folder / ".fairseq_mm") == ["index.h5"]
    store = FeatureStore(index_path(folder))
    store.check_content()
    embedder = from_pretrained(trained, device="cpu", kind="embedder")
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
    trained, photos, index, search, tmp_path, monkeypatch
):
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    state = torch.load(trained / "checkpoint_best.pt", weights_only=False)
    state["model"]["image_proj.weight"] += 1
    torch.save(state, other / "checkpoint_best.pt")
    content = (photos / ".fairseq_mm" / "index.h5").read_bytes()
    status, _, err = index(photos, "--checkpoint", other)
    assert status == 2
    assert one_line(err).endswith("or index all images anew: fairseq-mm index --rebuild.")
    status, _, err = search(photos, SENTENCE, "--checkpoint", other)
    assert status == 2
    assert "was made with the checkpoint" in one_line(err)
    assert (photos / ".fairseq_mm" / "index.h5").read_bytes() == content
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        assert index(photos, "--checkpoint", other, "--rebuild")[0] == 130
    # neither checkpoint continues the work of the other
    shutil.copy(photos / "image0.png", photos / "new.png")
    status, _, err = index(photos, "--checkpoint", trained)
    assert status == 2
    assert "was begun with another checkpoint" in one_line(err)
    status, out, _ = index(photos, "--checkpoint", other, "--rebuild")
    assert (status, out) == (0, f"{index_path(photos)}: 6 images, 6 new.\n")
    assert search(photos, SENTENCE)[0] == 0
    assert search(photos, SENTENCE, "--checkpoint", other)[0] == 0
    assert search(photos, SENTENCE, "--checkpoint", trained)[0] == 2


def test_a_checkpoint_that_was_trained_again_is_noticed(trained, index, search, tmp_path):
    folder, model = tmp_path / "photos", tmp_path / "model"
    save_images(folder, count=2)
    shutil.copytree(trained, model)
    index(folder, "--checkpoint", model)
    os.utime(model / "checkpoint_best.pt")  # the same content
    assert search(folder, SENTENCE)[0] == 0
    state = torch.load(model / "checkpoint_best.pt", weights_only=False)
    state["model"]["image_proj.weight"] += 1
    torch.save(state, model / "checkpoint_best.pt")
    for status, _, err in (search(folder, SENTENCE), index(folder)):
        assert status == 2
        assert "was made with the checkpoint" in one_line(err)
    shutil.rmtree(model)
    for status, _, err in (search(folder, SENTENCE), index(folder)):
        assert status == 2
        assert "which is not there any more: give its path (--checkpoint PATH" in one_line(err)
    assert search(folder, SENTENCE, "--checkpoint", trained)[0] == 0
    # the new path is recorded
    assert index(folder, "--checkpoint", trained)[0] == 0
    assert search(folder, SENTENCE)[0] == 0


def test_an_index_of_another_extractor_is_refused(trained, photos, index):
    path = index_path(photos)
    store = FeatureStore(path)
    attributes = {**store.attributes, "image_extractor": "{}"}
    for name in ("created", "package_version"):
        del attributes[name]
    rows = {key: store.read(key) for key in store.ids}
    os.remove(path)
    with image_indexing.FeatureStoreWriter(
        path, dim=store.dim, dtype="float32", attributes=attributes
    ) as writer:
        for key, row in rows.items():
            writer.append(key, row)
        writer.finish()
    status, _, err = index(photos)
    assert status == 2
    assert "another image extractor" in one_line(err)
    assert "--rebuild" in err


def test_images_that_vanished_or_changed_are_left_out_and_counted(photos, search):
    status, out, _ = search(photos, SENTENCE)
    names = names_of(out)
    first, second = (next(photos.rglob(name)) for name in names[:2])
    first.unlink()
    Image.new("RGB", (30, 40), "red").save(second)
    os.utime(next(photos.rglob(names[2])))  # the same content
    status, out, err = search(photos, SENTENCE, "--count", 2)
    assert status == 0
    assert names_of(out) == names[2:4]
    assert out.startswith("1\t")
    assert one_line(err) == (
        "2 images are left out, vanished or changed since the folder was indexed: update the index "
        f"(fairseq-mm index {photos})"
    )
    for path in photos.rglob("*.png"):
        path.unlink()
    status, out, err = search(photos, SENTENCE)
    assert (status, out) == (2, "")
    assert "none of the 5 images of the index is there as it was indexed" in one_line(err)


def test_a_folder_may_be_moved_with_its_index(photos, index, search):
    moved = photos.with_name("elsewhere")
    photos.rename(moved)
    status, out, err = search(moved, SENTENCE)
    assert (status, err) == (0, "")
    assert all(str(moved) in line for line in out.splitlines())
    assert "nothing has changed" in index(moved)[1]


def test_an_index_may_lie_elsewhere(trained, photos, index, search, tmp_path, monkeypatch):
    expected = search(photos, SENTENCE)[1]
    shutil.rmtree(photos / ".fairseq_mm")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *arguments: False)
        status, _, err = index(photos, "--checkpoint", trained)
    assert status == 2
    assert one_line(err) == (
        f"fairseq-mm index: {photos}/.fairseq_mm: the index cannot be written there (Permission "
        "denied): give the path of a file elsewhere (--output FILE; in Python index=...)."
    )
    assert not (photos / ".fairseq_mm").exists()
    path = tmp_path / "elsewhere.h5"
    assert index(photos, "--checkpoint", trained, "--output", path)[0] == 0
    assert search(photos, SENTENCE, "--index", path)[1] == expected
    assert "nothing has changed" in index(photos, "--output", path)[1]
    assert not (photos / ".fairseq_mm").exists()
    status, _, err = search(photos, SENTENCE)
    assert status == 2
    assert f"Make it first: fairseq-mm index {photos} --checkpoint PATH." in one_line(err)
    status, _, err = index(photos, "--output", tmp_path / "none" / "i.h5")
    assert "there is no folder" in one_line(err)


def test_the_extractors_weights_may_lie_elsewhere(trained, index, search, tmp_path):
    folder, model = tmp_path / "photos", tmp_path / "model"
    image = save_images(folder, count=2)[0]
    model.mkdir()
    shutil.copy(trained / "checkpoint_best.pt", model)
    status, _, err = index(folder, "--checkpoint", model)
    assert status == 2
    assert "--weights FILE" in one_line(err)
    assert not (folder / ".fairseq_mm").exists()
    weights = tmp_path / "weights.pth"
    shutil.copy(trained / "squeezenet.pth", weights)
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
def test_a_damaged_index_is_refused_until_it_is_rebuilt(photos, index, search, trained, damage):
    path = photos / ".fairseq_mm" / "index.h5"
    path.write_bytes(damage(path.read_bytes()))
    for status, out, err in (search(photos, SENTENCE), index(photos)):
        assert (status, out) == (2, "")
        assert "fairseq-mm index --rebuild" in one_line(err)
    assert index(photos, "--checkpoint", trained, "--rebuild")[0] == 0
    assert search(photos, SENTENCE)[0] == 0


def test_every_flipped_byte_of_an_index_is_noticed(photos, search):
    path = photos / ".fairseq_mm" / "index.h5"
    content = path.read_bytes()
    expected = search(photos, SENTENCE)[1]
    generator = np.random.default_rng(3)
    store = FeatureStore(path)
    first = store._rows_offset
    rows = range(first, first + store.read_all().nbytes)
    for position in [*generator.choice(len(content), 12), *generator.choice(rows, 6)]:
        flipped = bytearray(content)
        flipped[position] ^= 1 << generator.integers(8)
        path.write_bytes(flipped)
        status, out, err = search(photos, SENTENCE)
        assert (status, out) == (2, ""), position
        assert "fairseq-mm index --rebuild" in one_line(err)
    path.write_bytes(content)
    assert search(photos, SENTENCE)[1] == expected


def test_other_stores_are_no_index(photos, search, index, tmp_path, trained):
    path = tmp_path / "features.h5"
    write_store(path, ["image0.png"])
    embedded = tmp_path / "embedded.h5"
    data = trained / "data.moved"
    command = ["embed", data, "--checkpoint", trained, "--output", embedded, "--of", "words"]
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
        options = ["--checkpoint", trained, "--rebuild", "--output", other]
        status, _, err = index(photos, *options)
        assert status == 2
        assert "is no index, and is not replaced" in one_line(err)
        assert other.read_bytes() == content
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes((photos / ".fairseq_mm" / "index.h5").read_bytes()[:-100])
    options = ["--checkpoint", trained, "--rebuild", "--output", damaged]
    assert index(photos, *options)[0] == 0


def test_wrong_folders_and_checkpoints_are_one_line(
    trained, captioner, photos, index, search, tmp_path
):
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder, message in (
        (tmp_path / "none", "no such folder"),
        (photos / "image0.png", "is a file, but must be a folder"),
        (empty, "no images found"),
    ):
        status, out, err = index(folder, "--checkpoint", trained)
        assert (status, out) == (2, "")
        assert message in one_line(err)
    assert os.listdir(empty) == []
    assert "no such folder" in one_line(search(tmp_path / "none", SENTENCE)[2])
    shutil.rmtree(photos / ".fairseq_mm")
    assert "must embed images and sentences" in one_line(
        index(photos, "--checkpoint", captioner)[2]
    )
    assert "has no index yet: give the checkpoint" in one_line(index(photos)[2])
    assert not (photos / ".fairseq_mm").exists()


def test_a_search_without_a_readable_query_is_one_line(indexed, search, tmp_path, captioner):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    for arguments, message in (
        (["--image", broken], "broken.jpg: is no image"),
        (["--image", tmp_path / "none.jpg"], "none.jpg: No such file"),
        ([], "no query: give a sentence, or an image"),
        ([SENTENCE, "--checkpoint", captioner], "must embed images and sentences"),
        ([SENTENCE, "--html", tmp_path / "none" / "p.html"], "there is no folder"),
        ([SENTENCE, "--output", tmp_path], "is a folder"),
    ):
        status, out, err = search(indexed, *arguments)
        assert (status, out) == (2, "")
        assert message in one_line(err)


def test_a_page_shows_the_images_and_links_to_them(photos, search, tmp_path):
    name = "image é#1?.png"
    (photos / "image0.png").rename(photos / name)
    main(["index", str(photos), "--device", "cpu"])
    pages = tmp_path / "pages"
    pages.mkdir()
    page = pages / "page.html"
    query = str(photos / "image1.png")
    status, _, err = search(photos, f"{SENTENCE} zebra", "--image", query, "--html", page)
    assert status == 0
    assert f"wrote {page}: 10 images" in err
    text = page.read_text()
    assert text.count("data:image/jpeg;base64,") == 11
    assert "Left out, because the model does not know them: zebra" in text
    links = [urllib.parse.unquote(link) for link in re.findall(r'<a href="(.*?)">', text)]
    assert len(links) == 11
    assert all((pages / link).is_file() for link in links)
    assert f"../photos/{name}" in links


def test_a_search_reads_the_former_or_the_new_index(photos, trained, monkeypatch):
    """The index is replaced again and again while it is opened."""
    path = photos / ".fairseq_mm" / "index.h5"
    contents = [path.read_bytes()]
    shutil.copy(photos / "image1.png", photos / "new.png")
    assert main(["index", str(photos), "--device", "cpu"]) == 0
    contents.append(path.read_bytes())
    done = threading.Event()

    def replace():
        number = 0
        while not done.wait(0.02):
            number += 1
            with open(f"{path}.other", "wb") as file:
                file.write(contents[number % 2])
            os.replace(f"{path}.other", path)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        sizes = {len(ImageIndex.open(photos).search([SENTENCE])[0].images) for _ in range(12)}
    finally:
        done.set()
        thread.join()
    assert sizes <= {5, 6}


def test_an_index_that_is_replaced_while_it_is_read_is_read_again(photos, monkeypatch):
    path = index_path(photos)
    read_all = FeatureStore.read_all
    replaced = []

    def replace_first(self):
        if not replaced:
            shutil.copy(path, f"{path}.other")
            os.replace(f"{path}.other", path)
            replaced.append(path)
        return read_all(self)

    monkeypatch.setattr(FeatureStore, "read_all", replace_first)
    assert len(ImageIndex.open(photos)) == 5
    assert replaced


def test_an_index_in_memory_outlives_its_file(photos):
    index = ImageIndex.open(photos)
    os.remove(index.path)
    assert len(index.search([SENTENCE])[0].images) == 5
    assert repr(index).startswith("ImageIndex(")


def test_two_runs_do_not_write_one_index(photos, index):
    shutil.copy(photos / "image1.png", photos / "new.png")
    with locked_folder(f"{index_path(photos)}.partial"):
        status, _, err = index(photos)
    assert status == 2
    assert "another process is writing to it" in one_line(err)


def test_python_searches_by_open_images_and_vectors(photos, trained):
    summary = image_indexing.index_folder(photos, trained, device="cpu")
    assert (summary.num_images, summary.has_changed, summary.unreadable) == (5, False, [])
    index = ImageIndex.open(photos)
    with Image.open(photos / "image2.png") as image:
        (by_image,) = index.search_images([image], count=1)
    assert by_image.images[0].id == "image2.png"
    assert by_image.images[0].score == pytest.approx(1, abs=1e-5)
    (by_vector,) = index.search_vectors(index.vectors[4:], count=1)
    assert by_vector.images[0].id == index.ids[4]
    assert index.search([]) == []
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="count"):
            index.search([SENTENCE], wrong)
    with pytest.raises(ValueError, match="must be a list"):
        index.search(SENTENCE)
    with pytest.raises(ValueError, match="query vectors must be"):
        index.search_vectors(np.ones((1, 3), np.float32))


def test_large_indexes_are_searched_exactly(photos, monkeypatch):
    """Against float64 products; equal scores keep the order of the index."""
    index = ImageIndex.open(photos)
    generator = np.random.default_rng(1)
    vectors = generator.standard_normal((20_000, 24)).astype(np.float32)
    vectors[::7] = vectors[3]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index.vectors, index.ids = vectors, [str(i) for i in range(len(vectors))]
    monkeypatch.setattr(image_index.ImageIndex, "_has_changed", lambda self, name: False)
    queries = np.stack([vectors[3], vectors[10]])
    exact = queries.astype(np.float64) @ vectors.astype(np.float64).T
    for result, scores in zip(index.search_vectors(queries, 50), exact):
        found = [int(image.id) for image in result.images]
        assert_close(scores[found], np.sort(scores)[:-51:-1].copy())
    assert [int(image.id) for image in index.search_vectors(queries[:1], 5)[0].images] == [
        *(0, 3, 7, 14, 21)
    ]
