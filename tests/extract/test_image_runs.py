"""A run writes every readable image once, in order, however often it is interrupted."""

import itertools
import os

import numpy as np
import pytest
from numerics import assert_close
from PIL import Image

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.errors import UserError
from fairseq_mm.extract import readers, runner
from fairseq_mm.extract.extractor import build_extractor
from fairseq_mm.extract.media import list_images

SIZE, N = 32, 11


@pytest.fixture(scope="module")
def extractor():
    return build_extractor("resnet18", weights="none", size=SIZE)


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(4)
    (tmp_path / "photos").mkdir()
    for i in range(N):
        pixels = generator.integers(0, 255, (40 + i, 50 - i, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i:02}.png")
    return tmp_path / "photos"


@pytest.fixture
def output(tmp_path):
    return str(tmp_path / "out.h5")


def extract_to_store(extractor, images, output, **options):
    return runner.extract_to_store(extractor, extractor.reader(), images, output, **options)


def listed(folder):
    return list_images([str(folder)])


def contents(path):
    store = FeatureStore(path)
    return store.ids, np.concatenate([store.read(key) for key in store.ids])


@pytest.mark.parametrize("workers", [0, 2])
def test_every_image_stands_in_the_store_in_order(extractor, folder, output, workers):
    images = listed(folder)
    summary = extract_to_store(
        extractor, images, output, batch_size=4, workers=workers, dtype="float32"
    )
    assert summary[:4] == (N, 0, N, N)
    ids, rows = contents(output)
    assert ids == [f"{i:02}.png" for i in range(N)]
    expected = np.concatenate(extractor.extract([image.path for image in images]))
    assert_close(rows, expected)
    attributes = FeatureStore(output).attributes
    assert {key: attributes[key] for key in extractor.identity} == extractor.identity
    assert {"package_version", "created"} <= set(attributes)
    assert not os.path.exists(output + ".unreadable.tsv")


@pytest.mark.parametrize(("num_done", "traced"), [(1, N), (4, N + 1), (6, N), (N, N + 1)])
def test_an_interrupted_run_continues_to_equal_bits(
    folder, output, tmp_path, monkeypatch, num_done, traced
):
    monkeypatch.setattr(runner, "_TRACED_IMAGES", traced)
    extractor = build_extractor("resnet18", weights="none", size=SIZE)
    (folder / "05.png").write_bytes(b"broken")
    images = listed(folder)
    whole = str(tmp_path / "whole.h5")
    options = {"batch_size": 4, "workers": 0, "dtype": "float32"}
    extract_to_store(extractor, images, whole, **options)

    append, finish = runner.FeatureStoreWriter.append, runner.FeatureStoreWriter.finish
    calls = itertools.count(1)

    def interrupted_append(writer, *item):
        append(writer, *item)
        if next(calls) == num_done:
            raise KeyboardInterrupt

    def interrupted_finish(writer):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.FeatureStoreWriter, "append", interrupted_append)
    monkeypatch.setattr(runner.FeatureStoreWriter, "finish", interrupted_finish)
    with pytest.raises(KeyboardInterrupt):
        extract_to_store(extractor, images, output, **options)
    assert not os.path.exists(output)
    monkeypatch.setattr(runner.FeatureStoreWriter, "append", append)
    monkeypatch.setattr(runner.FeatureStoreWriter, "finish", finish)

    decoded = []
    read = readers.read_image
    monkeypatch.setattr(
        readers,
        "read_image",
        lambda image, **options: decoded.append(image) or read(image, **options),
    )
    # as the process that goes on
    extractor = build_extractor("resnet18", weights="none", size=SIZE)
    extract_to_store(extractor, images, output, **options)
    assert (extractor._traced is not None) == (traced == N)
    assert len(decoded) == N - min(num_done, N - 1)
    (ids, rows), (expected_ids, expected) = contents(output), contents(whole)
    assert ids == expected_ids
    np.testing.assert_array_equal(rows, expected)
    with open(output + ".unreadable.tsv") as one, open(whole + ".unreadable.tsv") as other:
        assert one.read() == other.read()
    assert not os.path.exists(output + ".partial")


def test_unreadable_images_are_listed_counted_and_left_out(extractor, folder, output):
    (folder / "03.png").write_bytes(b"")
    (folder / "07.png").write_bytes((folder / "07.png").read_bytes()[:900])
    images = listed(folder)
    summary = extract_to_store(extractor, images, output, batch_size=3, workers=1)
    assert (summary.num_items, summary.num_unreadable) == (N - 2, 2)
    with open(output + ".unreadable.tsv") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    reason = "is not an image, or its format is not supported."
    assert lines[0] == [str(folder / "03.png"), reason]
    assert lines[1][0] == str(folder / "07.png")
    assert "03.png" not in FeatureStore(output)


def test_nothing_readable_is_an_error(extractor, folder, output):
    for file in folder.iterdir():
        file.write_bytes(b"none")
    with pytest.raises(UserError, match=rf"none of the {N} images can be read; .*00\.png: is no"):
        extract_to_store(extractor, listed(folder), output, workers=0)
    assert not os.path.exists(output)


def test_a_finished_store_is_kept(extractor, folder, output):
    extract_to_store(extractor, listed(folder)[:-2], output, workers=0)
    with pytest.raises(UserError, match=r"out\.h5: exists already\. .* replace it: --overwrite"):
        extract_to_store(extractor, listed(folder), output)
    assert len(FeatureStore(output)) == N - 2
    extract_to_store(extractor, listed(folder), output, workers=0, overwrite=True)
    assert len(FeatureStore(output)) == N


def test_images_of_several_sizes_become_items_of_several_rows(folder, output):
    extractor = build_extractor(
        "squeezenet1_1", weights="none", resize="none", crop="none", grid=True
    )
    extract_to_store(extractor, listed(folder), output, batch_size=4, workers=1)
    store = FeatureStore(output)
    assert {store.count_rows(key) for key in store.ids} > {4}
    first = extractor.extract([str(folder / "03.png")])[0]
    np.testing.assert_allclose(store.read("03.png"), first, rtol=5e-3, atol=1e-3)  # float16


def test_a_killed_decoding_process_is_one_line(extractor, folder, output, monkeypatch):
    def killed(*_arguments, **_options):
        os._exit(9)

    monkeypatch.setattr(readers, "read_image", killed)  # forked processes inherit it
    with pytest.raises(
        UserError, match=r"00\.png: the process that decoded it was killed, perhaps"
    ):
        extract_to_store(extractor, listed(folder), output, workers=1)
