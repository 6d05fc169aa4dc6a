"""Reader of the feature store: rows by key, in every process, and one line for a bad file."""

import multiprocessing
import os
import pickle
import sys

import h5py
import numpy as np
import pytest

from fairseq_mm.data.feature_store import FeatureStore, is_finite, open_features
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError

DIM = 5
COUNTS = {"a.jpg": 1, "b.jpg": 4, "vidéo": 7, "d": 2}


def rows_for(count, dim=DIM, first=0):
    return (np.arange(count * dim).reshape(count, dim) + first).astype(np.float16)


@pytest.fixture
def items():
    return {key: rows_for(count, first=10 * i) for i, (key, count) in enumerate(COUNTS.items())}


@pytest.fixture
def write_store(tmp_path):
    def write(items, name="features.h5", dim=DIM, dtype="float16", attributes=None):
        path = str(tmp_path / name)
        with FeatureStoreWriter(path, dim=dim, dtype=dtype, attributes=attributes or {}) as writer:
            for key, rows in items.items():
                writer.append(key, rows)
            writer.finish()
        return path

    return write


@pytest.fixture
def write_hdf5(tmp_path):
    """Writes a store's members directly, each of them replaceable, None to leave it out."""

    def write(name="other.h5", create=None, attributes=None, **members):
        path = str(tmp_path / name)
        content = {
            "features": np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM),
            "offsets": np.array([0, 1, 3]),
            "ids": np.array(["x", "y"], dtype=object),
            **members,
        }
        with h5py.File(path, "w") as file:
            for member, value in content.items():
                if value is None:
                    continue
                options = (create or {}) if member == "features" else {}
                dtype = h5py.string_dtype() if value.dtype.kind == "O" else None
                file.create_dataset(member, data=value, dtype=dtype, **options)
            file.attrs.update({"format_version": 1} if attributes is None else attributes)
        return path

    return write


@pytest.fixture
def open_store(items, write_store, write_hdf5):
    def open_as(kind):
        path = write_store(items, f"{kind}.h5")
        if "compressed" in kind:
            with h5py.File(path) as file:
                members = {name: file[name][:] for name in ("features", "offsets", "ids")}
            path = write_hdf5(f"{kind}2.h5", {"compression": "gzip", "chunks": (2, DIM)}, **members)
        return FeatureStore(path, preload="preloaded" in kind)

    return open_as


KINDS = ["contiguous", "compressed", "preloaded", "compressed and preloaded"]


@pytest.fixture(params=KINDS)
def store(request, open_store):
    return open_store(request.param)


def assert_same_items(store, items):
    assert store.ids == list(items)
    for key in reversed(store.ids):
        np.testing.assert_array_equal(store.read(key), items[key])


def test_every_item_is_read_as_it_was_written(store, items):
    assert_same_items(store, items)
    assert (len(store), store.dim, store.dtype) == (4, DIM, np.float16)
    assert [store.count_rows(key) for key in store.ids] == list(COUNTS.values())
    assert "vidéo" in store
    assert "video" not in store


def test_a_store_reads_again_after_pickling(store, items):
    store.read("d")
    assert_same_items(store, items)
    copy = pickle.loads(pickle.dumps(store))
    assert_same_items(copy, items)
    assert "d" in pickle.loads(pickle.dumps(store))


def test_a_pickle_has_no_features(write_store):
    path = write_store({"a": np.ones((1000, DIM))})
    store = FeatureStore(path, preload=True)
    store.read("a")
    assert len(pickle.dumps(store)) < 2000


def read_all(stores, results):
    results.put([(key, store.read(key)) for store in stores for key in store.ids])


@pytest.mark.parametrize(("method", "count"), [("fork", 3), ("spawn", 1)])
def test_other_processes_read_stores_that_are_open_here(
    method, count, open_store, items, monkeypatch
):
    # a spawned process that takes itself for the command does not import fairseq
    monkeypatch.setattr(sys, "argv", ["fairseq-mm"])
    stores = [open_store(kind) for kind in KINDS]
    for store in stores:
        store.read("d")
    context = multiprocessing.get_context(method)
    results = context.Queue()
    workers = [context.Process(target=read_all, args=(stores, results)) for _ in range(count)]
    for worker in workers:
        worker.start()
    for _ in workers:
        read = results.get(timeout=60)
        assert len(read) == len(KINDS) * len(items)
        for key, rows in read:
            np.testing.assert_array_equal(rows, items[key])
    for worker in workers:
        worker.join()
    for store in stores:
        assert_same_items(store, items)


def test_attributes_come_back_as_plain_values(write_store):
    given = {"extractor": "mobilenet_v2", "grid": 0, "frame_rate": 2.5, "flag": True}
    store = FeatureStore(write_store({"a": rows_for(1)}, attributes=given))
    created = store.attributes.pop("created")
    assert created.endswith("+00:00")
    assert store.attributes.pop("package_version")
    assert store.attributes == given
    assert {name: type(value) for name, value in store.attributes.items()} == {
        name: type(value) for name, value in given.items()
    }


def test_a_store_of_no_items_opens(write_store):
    store = FeatureStore(write_store({}), preload=True)
    assert (len(store), store.dim) == (0, DIM)
    store.check_finite(reread=True)


@pytest.mark.parametrize(
    ("key", "closest"), [("images/b.png", "b.jpg"), ("A.JPG", "a.jpg"), ("vide0", "vidéo")]
)
def test_a_missing_key_is_named_with_the_path_and_the_closest_one(items, write_store, key, closest):
    path = write_store(items)
    for store in (FeatureStore(path), open_features([path])):
        message = f"^{path}: no features for '{key}' among 4 items. Closest: '{closest}'$"
        with pytest.raises(UserError, match=message):
            store.read(key)
        with pytest.raises(UserError, match="no features for"):
            store.count_rows(key)
    with pytest.raises(UserError, match=r"among 4 items.$"):
        store.read("???????")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rows_that_are_not_finite_are_refused_by_id(write_hdf5, value, dtype):
    features = np.ones((3, DIM), dtype=dtype)
    features[2, 3] = value
    path = write_hdf5(features=features)
    store = FeatureStore(path)
    store.read("x")
    message = "other.h5: the features of 'y' have NaN or infinite values"
    with pytest.raises(UserError, match=message):
        store.read("y")
    with pytest.raises(UserError, match=message):
        store.check_finite()
    with pytest.raises(UserError, match=message):
        store.read_all()


def test_largest_and_smallest_float16_values_are_finite():
    limits = np.finfo(np.float16)
    assert is_finite(np.array([limits.max, limits.min, limits.tiny, 0], dtype=np.float16))
    assert not is_finite(np.array([1, np.nan, 0], dtype=np.float16)[:2])
    strided = np.array([1, np.inf, 2, 3], dtype=np.float16)
    assert is_finite(strided[::2])
    assert not is_finite(strided[1::2])


def test_check_finite_goes_over_many_pieces(monkeypatch, write_hdf5):
    monkeypatch.setattr("fairseq_mm.data.feature_store.PIECE_BYTES", 2 * DIM * 4)
    features = np.ones((9, DIM), dtype=np.float32)
    store = FeatureStore(write_hdf5(features=features, offsets=np.array([0, 6, 9])))
    store.check_finite()
    assert store.rows_finite
    for row, key in ((6, "y"), (5, "x")):  # first and last row of an item
        features[row, 0] = np.nan
        store = FeatureStore(write_hdf5(features=features, offsets=np.array([0, 6, 9])))
        with pytest.raises(UserError, match=f"features of '{key}' have NaN"):
            store.check_finite()


OTHER_OFFSETS = ([0, 3], [0, 1, 4], [1, 2, 3], [0, 3, 3], [0, 4, 3])


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"attributes": {}}, "attribute"),
        ({"offsets": None}, "offsets"),
        ({"attributes": {"format_version": 2}}, "format version 2, which is newer"),
        ({"features": np.ones((3, 2, 2), np.float16)}, "ValueError|too many values"),
        ({"features": np.ones((3, 2))}, "features of float64"),
        *(({"offsets": np.array(offsets)}, "offsets of other") for offsets in OTHER_OFFSETS),
        ({"ids": np.array(["x", "x"], dtype=object)}, "an id twice"),
        ({"ids": np.array([1, 2])}, ""),
    ],
)
def test_members_that_do_not_fit_together_are_refused(write_hdf5, members, message):
    with pytest.raises(UserError, match=f"other.h5: is no feature store .*{message}"):
        FeatureStore(write_hdf5(**members))


def float_type(precision, exponent_at, exponent_bits, bias, size):
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(precision - 1, exponent_at, exponent_bits, 0, exponent_at)
    kind.set_precision(precision)
    kind.set_ebias(bias)
    kind.set_size(size)
    return kind


ROWS = np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM)


def in_another_file(file, folder):
    with h5py.File(folder / "rows.h5", "w") as other:
        other["features"] = ROWS
    file["features"] = h5py.ExternalLink("rows.h5", "/features")


def in_a_raw_file(file, folder):
    (folder / "rows").write_bytes(ROWS.tobytes())
    file.create_dataset("features", ROWS.shape, "f4", external=[(str(folder / "rows"), 0, 60)])


def virtually(file, folder):
    in_another_file(file, folder)
    layout = h5py.VirtualLayout(ROWS.shape, "f4")
    layout[:] = h5py.VirtualSource("rows.h5", "features", shape=ROWS.shape, dtype="f4")
    del file["features"]
    file.create_virtual_dataset("features", layout)


def as_bfloat16(file, folder):
    kind = float_type(16, 7, 8, 127, 2)  # h5py shows it as float32
    h5py.h5d.create(file.id, b"features", kind, h5py.h5s.create_simple(ROWS.shape))
    file["features"][...] = ROWS


def in_big_endian(file, folder):
    file.create_dataset("features", data=ROWS, dtype=">f4")


@pytest.mark.parametrize(
    "make", [in_another_file, in_a_raw_file, virtually, as_bfloat16, in_big_endian]
)
def test_rows_of_any_layout_are_those_that_libhdf5_reads(write_hdf5, tmp_path, make):
    path = write_hdf5(features=None)
    with h5py.File(path, "r+") as file:
        make(file, tmp_path)
    store = FeatureStore(path)
    np.testing.assert_array_equal(store.read("x"), ROWS[:1])
    np.testing.assert_array_equal(store.read("y"), ROWS[1:])


def test_changes_of_other_programs_are_found_by_the_digest(items, write_store):
    path = write_store(items, attributes={"extractor": "resnet18"})
    digest = FeatureStore(path).check_content()
    assert digest == FeatureStore(path).digest
    with h5py.File(path, "r+") as file:
        file["features"][2] = np.nan
    store = FeatureStore(path)
    store.check_finite()  # the store says that its writer has checked them
    with pytest.raises(UserError, match=r"features of 'b.jpg' have NaN or infinite"):
        store.check_finite(reread=True)
    for change in ("ids", "extractor"):
        path = write_store(items, f"{change}.h5", attributes={"extractor": "resnet18"})
        with h5py.File(path, "r+") as file:
            if change == "ids":
                file["ids"][0], file["ids"][3] = "d", "a.jpg"
            else:
                file.attrs["extractor"] = "resnet50"
        with pytest.raises(UserError, match="its ids, rows or extractor do not match the digest"):
            FeatureStore(path).check_content()


def test_a_store_replaced_while_in_use_is_refused(items, write_store):
    path = write_store(items)
    store = pickle.loads(pickle.dumps(FeatureStore(path)))
    os.remove(path)
    write_store({**items, "e": rows_for(3)})
    with pytest.raises(UserError, match="was replaced or changed while in use"):
        store.read("d")


def test_the_union_reads_from_the_store_that_has_the_item(items, write_store):
    other = {"e": rows_for(3).astype(np.float32) + 0.1, "f": rows_for(1)}
    paths = [write_store(items), write_store(other, "other.h5", dtype="float32")]
    union = open_features(paths)
    assert_same_items(union, {**items, **other})
    assert_same_items(pickle.loads(pickle.dumps(union)), {**items, **other})
    assert (len(union), union.dim, union.dtype) == (6, DIM, np.float32)
    assert union.read("a.jpg").dtype == np.float32
    assert union.count_rows("e") == 3
    assert "f" in union
    assert "g" not in union
    union.check_finite(reread=True)
    with pytest.raises(UserError, match=r"features.h5 or .*other.h5: no features for 'g' among 6"):
        union.read("g")


def test_stores_that_do_not_fit_together_are_refused(items, write_store):
    first = write_store(items, "first.h5")
    same = write_store({"new": rows_for(1), "d": rows_for(2)}, "same.h5")
    with pytest.raises(UserError, match=r"the id 'd' stands both in .*first.h5 and in .*same.h5"):
        open_features([first, same])
    wide = write_store({"e": rows_for(1, dim=6)}, "wide.h5", dim=6)
    with pytest.raises(UserError, match=r"wide.h5: made with dim = 6, but .*first.h5 with dim = 5"):
        open_features([first, wide])


def test_stores_of_different_extractors_are_refused(write_store):
    made = {"extractor": "resnet18", "layer": "avgpool"}
    paths = [
        write_store({"a": rows_for(1)}, "a.h5", attributes={**made, "note": "one"}),
        write_store({"b": rows_for(1)}, "b.h5", attributes={**made, "note": "two"}),
        write_store({"c": rows_for(1)}, "c.h5", attributes={**made, "layer": "fc"}),
    ]
    attributes = open_features(paths[:2]).attributes
    assert attributes.items() >= made.items()
    assert "note" not in attributes
    with pytest.raises(UserError, match=r"c.h5: made with layer = 'fc', but .*a.h5 with layer = "):
        open_features(paths)
