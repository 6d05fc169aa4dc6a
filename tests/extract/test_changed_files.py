"""A store is taken for finished, and a run continued, only where the files are still the same."""

import contextlib
import hashlib
import json
import os
import tarfile

import numpy as np
import pytest
from PIL import Image

from fairseq_mm.data.feature_store import FeatureStore, Source
from fairseq_mm.errors import UserError
from fairseq_mm.extract import hashed_file, runner
from fairseq_mm.extract.extractor import build_extractor
from fairseq_mm.extract.hashed_file import HashedFile
from fairseq_mm.extract.media import MediaFile, list_images

SIZE, N = 32, 5


@pytest.fixture(scope="module")
def extractor():
    return build_extractor("resnet18", weights="none", size=SIZE)


def draw(folder, seed, count=N):
    """Images that have the same names and sizes in bytes in every folder."""
    folder.mkdir()
    generator = np.random.default_rng(seed)
    for i in range(count):
        pixels = generator.integers(0, 255, (40 + i, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.bmp")
    return folder


@pytest.fixture
def folder(tmp_path):
    return draw(tmp_path / "photos", 1)


@pytest.fixture
def other(tmp_path):
    return draw(tmp_path / "others", 2)


@pytest.fixture
def output(tmp_path):
    return str(tmp_path / "out.h5")


@pytest.fixture
def extract(extractor, output):
    def extract_all(*inputs, **options):
        images = list_images([str(path) for path in inputs])
        return runner.extract_to_store(
            extractor, extractor.reader(), images, output, **{"workers": 0, **options}
        )

    return extract_all


def pack(folder, path):
    with tarfile.open(path, "w") as archive:
        archive.add(folder, ".")
    return path


def list_files(folder, path):
    path.write_text("".join(f'{{"image": "{file}"}}\n' for file in sorted(folder.iterdir())))
    return path


def inputs_of(kind, folder, tmp_path):
    if kind == "folder":
        return folder
    if kind == "tar":
        return pack(folder, tmp_path / f"{folder.name}.tar")
    return list_files(folder, tmp_path / f"{folder.name}.jsonl")


@contextlib.contextmanager
def killed_after(monkeypatch, count):
    append = runner.FeatureStoreWriter.append

    def append_and_die(writer, *item):
        append(writer, *item)
        if len(writer.done) == count:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runner.FeatureStoreWriter, "append", append_and_die)
        with pytest.raises(KeyboardInterrupt):
            yield


KINDS = ["folder", "tar", "list"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_begun_store_is_not_continued_with_other_files(
    extract, folder, other, output, tmp_path, kind, monkeypatch
):
    given, others = (inputs_of(kind, one, tmp_path) for one in (folder, other))
    with killed_after(monkeypatch, 2):
        extract(given)
    with pytest.raises(UserError, match="2 of 2 images have changed, such as") as error:
        extract(others)
    assert str(error.value).endswith(f"or delete {output}.partial to begin anew.")
    assert extract(given).num_extracted == N - 2


@pytest.mark.parametrize("num_done", [3, 1])
def test_exchanged_files_of_one_size_and_time_are_refused(
    extract, output, tmp_path, monkeypatch, num_done
):
    """As reproducible archives leave them: all of one time."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(N):
        Image.new("RGB", (40, 50), (i, 2 * i, 90)).save(folder / f"{i}.bmp")
        os.utime(folder / f"{i}.bmp", ns=(10**18, 10**18))
    orders = {"given": (0, 1, 2, 3, 4), "exchanged": (4, 1, 2, 3, 0)}
    lists = {name: tmp_path / f"{name}.jsonl" for name in orders}
    for name, order in orders.items():
        lines = [{"id": f"item{i}", "image": f"{folder}/{j}.bmp"} for i, j in enumerate(order)]
        lists[name].write_text("".join(json.dumps(line) + "\n" for line in lines))
    with killed_after(monkeypatch, num_done):
        extract(lists["given"])
    with pytest.raises(UserError, match=r"(1|2) of \d images have changed, such as .*4\.bmp"):
        extract(lists["exchanged"])
    assert extract(lists["given"]).num_extracted == N - num_done


def test_the_record_is_that_of_the_bytes(extract, folder, output):
    extract(folder, workers=2)
    store = FeatureStore(output)
    for key in store.ids:
        content = (folder / key).read_bytes()
        expected = Source(
            len(content), os.stat(folder / key).st_mtime_ns, hashlib.sha256(content).digest()
        )
        assert store.get_source(key) == expected


def test_a_file_that_changes_while_it_is_read_has_no_record(folder, monkeypatch):
    path = folder / "0.bmp"
    for limit in (0, 1 << 20):
        monkeypatch.setattr(hashed_file, "MAX_BYTES_IN_MEMORY", limit)
        with HashedFile(MediaFile("0", str(path))) as hashed:
            path.write_bytes(path.read_bytes() + b"more")
            with pytest.raises(UserError, match="was changed while it was read"):
                hashed.get_source()


def test_a_pipe_is_unreadable_and_nobody_waits(extract, folder):
    os.mkfifo(folder / "pipe.bmp")
    assert extract(folder).num_unreadable == 1


def test_an_archive_that_is_cut_ends_in_its_last_member(extract, folder, tmp_path, output):
    path = pack(folder, tmp_path / "photos.tar")
    images = list_images([str(path)])
    end = images[-1].offset + images[-1].size
    os.truncate(path, end - 100)
    file = MediaFile("last", *images[-1][1:])
    with pytest.raises(UserError, match=r"cannot be read .ReadError: unexpected end of data"):
        HashedFile(file)
