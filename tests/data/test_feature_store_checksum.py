"""Damaged feature stores: refused before libhdf5 reads them, or read in a process of their own."""

import errno
import multiprocessing
import os
import signal
import time

import h5py
import numpy as np
import pytest

from fairseq_mm.cli.main import main
from fairseq_mm.data import separate_process
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_checksum import add_checksum, check_metadata
from fairseq_mm.data.feature_store_copy import convert_store, merge_stores
from fairseq_mm.data.feature_store_inspection import describe_store, rows_by_id, verify_store
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.data.separate_process import in_separate_process
from fairseq_mm.errors import UserError

DIM, ITEMS, TRAILER = 4, 20, 64


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "f.h5")
    attributes = {"extractor": "x", "grid": 0}
    with FeatureStoreWriter(path, dim=DIM, dtype="float16", attributes=attributes) as writer:
        for i in range(ITEMS):
            writer.append(f"image{i}.jpg", np.full((2, DIM), i, np.float16))
        writer.finish()
    return path


def write_earlier_store(path):
    """The store of :func:`path`, as earlier versions wrote it: without content_checksum."""
    attributes = {
        **{"format": "fairseq_mm feature store", "format_version": 1, "rows_finite": True},
        **{"package_version": "0.2.0", "extractor": "x", "grid": 0},
        "created": "2025-01-01T00:00:00+00:00",
    }
    with h5py.File(path, "w") as file:
        for name, value in attributes.items():
            file.attrs[name] = value
        file["offsets"] = np.arange(ITEMS + 1) * 2
        ids = [f"image{i}.jpg" for i in range(ITEMS)]
        file.create_dataset("ids", data=ids, dtype=h5py.string_dtype())
        features = file.create_dataset("features", shape=(2 * ITEMS, DIM), dtype=np.float16)
        features[:] = np.repeat(np.arange(ITEMS), 2 * DIM).reshape(-1, DIM)
    add_checksum(path)


def rewrite(path, change):
    """Applies ``change`` to the bytes of a file."""
    with open(path, "rb") as file:
        content = bytearray(file.read())
    content = change(content) or content
    with open(path, "wb") as file:
        file.write(content)


def with_byte(at, value):
    return lambda content: content.__setitem__(at, value)


def without_checksum(path):
    rewrite(path, lambda content: content[:-TRAILER])


def rows_of_file(path):
    with h5py.File(path) as file:
        start = file["features"].id.get_offset()
        return range(start, start + file["features"].nbytes)


def test_every_changed_byte_beside_the_rows_is_found_before_the_file_is_opened(path, monkeypatch):
    with open(path, "rb") as file:
        good = file.read()
    rows, mark = rows_of_file(path), range(len(good) - TRAILER, len(good) - TRAILER + 16)
    monkeypatch.setattr(h5py, "File", None)  # reading it by libhdf5 would be a TypeError
    for at in range(0, len(good), 5):
        if at in rows or at in mark:
            continue
        rewrite(path, lambda _, at=at: good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
        with pytest.raises(UserError, match=r"f\.h5: does not match the checksum"):
            FeatureStore(path)


def test_changed_rows_are_no_matter_of_the_checksum(path):
    rewrite(path, with_byte(rows_of_file(path)[0], 1))
    assert FeatureStore(path).has_checksum


def test_a_store_without_checksum_is_read_and_gets_one(path):
    without_checksum(path)
    before = FeatureStore(path)
    assert not before.has_checksum
    found = verify_store(path, repair=True)
    store = FeatureStore(path)
    assert store.has_checksum
    assert check_metadata(path)
    assert store.ids == before.ids
    np.testing.assert_array_equal(store.read("image7.jpg"), np.full((2, DIM), 7))
    size = os.path.getsize(path)
    assert found["is_repaired"]
    assert verify_store(path, repair=True) == {**found, "is_repaired": False}
    assert os.path.getsize(path) == size


def test_a_store_that_h5py_has_changed_has_no_checksum(path):
    with h5py.File(path, "r+") as file:
        file.attrs["note"] = "added"
    assert not FeatureStore(path).has_checksum
    assert describe_store(path)["attributes"]["note"] == "added"


def test_a_store_of_an_earlier_version_is_read_and_named(tmp_path, capsys):
    path = str(tmp_path / "earlier.h5")
    write_earlier_store(path)
    store = FeatureStore(path)
    assert store.has_checksum
    assert store.content_checksum == ""
    checksum = store.check_content()
    assert main(["store", "verify", path]) == 0
    assert "without a checksum of ids and rows, so that exchanged ids go" in capsys.readouterr().err
    assert main(["doctor", "--features", path]) in (0, 2)  # the machine may have problems
    assert f"ok       {path}: " in capsys.readouterr().out
    converted = str(tmp_path / "converted.h5")
    convert_store(path, converted)
    assert FeatureStore(converted).content_checksum not in ("", checksum)  # with the extractor


def test_a_changed_extractor_is_found(tmp_path, capsys):
    path = str(tmp_path / "f.h5")
    attributes = {"extractor": "resnet18", "weights": "none:0", "layer": "layer4", "grid": 0}
    with FeatureStoreWriter(path, dim=DIM, attributes=attributes) as writer:
        writer.append("a", np.zeros(DIM))
        writer.finish()
    assert main(["store", "verify", path]) == 0
    with h5py.File(path, "r+") as file:
        file.attrs["extractor"] = "resnet50"
    assert main(["store", "verify", path]) == 2
    assert "its ids, rows or extractor do not match" in capsys.readouterr().err
    assert main(["doctor", "--features", path]) == 2
    assert "its ids, rows or extractor do not match" in capsys.readouterr().out


def test_a_continued_store_has_the_checksum_of_one_that_was_written_at_once(path):
    continued = f"{path}.continued"
    attributes = {"extractor": "x", "grid": 0}
    for upto in (3, 11, ITEMS):
        with FeatureStoreWriter(continued, dim=DIM, attributes=attributes) as writer:
            for i in range(len(writer.done), upto):
                writer.append(f"image{i}.jpg", np.full((2, DIM), i, np.float16))
            if upto == ITEMS:
                writer.finish()
    assert FeatureStore(continued).content_checksum == FeatureStore(path).content_checksum != ""


def test_an_empty_store_has_a_checksum_and_rows_in_chunks_cannot(tmp_path):
    path = str(tmp_path / "empty.h5")
    with FeatureStoreWriter(path, dim=DIM, attributes={}) as writer:
        writer.finish()
    assert FeatureStore(path).has_checksum
    chunked = str(tmp_path / "chunked.h5")
    write_chunked(chunked)
    with pytest.raises(UserError, match=r"chunked\.h5: rows in chunks get no checksum"):
        add_checksum(chunked)


# found by trying: libhdf5 1.14 crashes on the first four, and does not end on the others
KILLERS = [(849, 255), (1081, 255), (1161, 255), (1289, 255), (2592, 255), (2849, 0), (2593, 1)]


@pytest.mark.parametrize(("at", "value"), KILLERS)
def test_a_byte_that_libhdf5_does_not_survive_is_one_line(path, monkeypatch, at, value):
    monkeypatch.setattr(separate_process, "PATIENCE", 1.0)
    write_earlier_store(path)  # in the layout in which the bytes were found
    without_checksum(path)
    rewrite(path, with_byte(at, value))
    out = f"{path}.out"

    def merge(path):
        merge_stores([path], out)

    def convert(path):
        convert_store(path, out)

    for inspect in (describe_store, rows_by_id, verify_store, merge, convert):
        with pytest.raises(UserError, match=r"f\.h5: HDF5 file is damaged"):
            inspect(path)
    assert not os.path.exists(out)


def hang():
    time.sleep(60)


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def fill_memory():
    # more than the parent process may have freed: the allocator gives freed memory out again, which
    # the limit does not count
    return [np.empty(separate_process.MEMORY, dtype=np.uint8) for _ in range(200)]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (hang, r"reading it did not end in 1 s"),
        (crash, r"reading it crashed \(status -11\)"),
        (fill_memory, "reading it took 100 MiB"),
    ],
)
def test_what_a_separate_process_does_not_survive_is_one_line(monkeypatch, function, message):
    monkeypatch.setattr(separate_process, "PATIENCE", 1.0)
    monkeypatch.setattr(separate_process, "MEMORY", 100 << 20)
    with pytest.raises(UserError, match=message):
        in_separate_process("f.h5", function)


def test_a_daemonic_process_merges(path, tmp_path):
    without_checksum(path)
    out = str(tmp_path / "out.h5")
    process = multiprocessing.Process(target=merge_stores, args=([path], out), daemon=True)
    process.start()
    process.join(timeout=60)
    assert process.exitcode == 0
    assert FeatureStore(out).ids == FeatureStore(path).ids


def test_where_no_process_can_be_started_is_one_line(monkeypatch):
    def fork():
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(UserError, match=r"f\.h5: .* none can be started \(Resource temp"):
        in_separate_process("f.h5", hang)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.h5")
    for found in (tmp_path, tmp_path / "pipe.h5", "/dev/zero"):
        with pytest.raises(UserError, match="is a folder, a device or a pipe"):
            FeatureStore(found)
    assert os.listdir(tmp_path) == ["pipe.h5"]


def write_chunked(path, *, rows=6, chunk=2, fill=True, items=None):
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        features = file.create_dataset(
            "features", (rows, DIM), "f4", chunks=(chunk, DIM), compression="gzip"
        )
        if fill:
            features[:] = np.random.default_rng(0).random((rows, DIM), dtype=np.float32)
        items = rows if items is None else items
        file["offsets"] = np.append(np.arange(items), rows)
        file["ids"] = np.array([f"{i}" for i in range(items)], dtype=h5py.string_dtype())


def test_compressed_rows_are_read(tmp_path):
    path = str(tmp_path / "c.h5")
    write_chunked(path)
    assert describe_store(path)["rows"] == 6


def test_declared_rows_that_the_file_does_not_hold_are_refused(tmp_path):
    path = str(tmp_path / "c.h5")
    write_chunked(path, rows=1 << 40, chunk=1 << 10, fill=False, items=1)
    assert os.path.getsize(path) < 20_000
    with pytest.raises(UserError, match=r"`features` declares 17,592,186,044,416 bytes, but the"):
        FeatureStore(path)
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        file["features"] = np.zeros((2, DIM), np.float32)
        file["offsets"] = np.array([0, 2])
        file.create_dataset("ids", (1 << 40,), h5py.string_dtype(), chunks=(1 << 10,))
    with pytest.raises(UserError, match=r"`ids` declares 8,796,093,022,208 bytes"):
        FeatureStore(path)


def test_rows_in_other_files_are_refused(tmp_path):
    path = str(tmp_path / "v.h5")
    (tmp_path / "secret").write_bytes(bytes(32))
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        file.create_dataset(
            "features", (2, DIM), "f4", external=[(str(tmp_path / "secret"), 0, 32)]
        )
        file["offsets"] = np.array([0, 2])
        file["ids"] = np.array(["a"], dtype=h5py.string_dtype())
    with pytest.raises(UserError, match=r"`features` must lie in the file itself"):
        FeatureStore(path)
