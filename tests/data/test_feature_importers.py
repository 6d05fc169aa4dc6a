"""Importers: every layout that people have becomes the same store, and no pickle is ever loaded."""

import hashlib
import os
import pickle

import numpy as np
import pytest

from fairseq_mm.data.feature_importers import extractor_attributes, import_features, open_source
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.errors import UserError

N, R, D = 4, 3, 5
POOLED = np.arange(N * D, dtype=np.float32).reshape(N, D)
REGIONS = np.arange(N * R * D, dtype=np.float16).reshape(N, R, D)
IDS = ["b.jpg", "a.jpg", "ü.jpg", "d"]


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "out.h5")


@pytest.fixture
def ids_path(tmp_path):
    path = tmp_path / "ids.txt"
    path.write_text("\n".join(IDS) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def save(tmp_path):
    def save_array(array, name="features.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / name, array)
        return tmp_path / name

    return save_array


def lines(path, count):
    path.write_text("".join(f"caption {i}\n" for i in range(count)))
    return str(path)


def import_all(source, out, **options):
    import_features(source, out, attributes={}, **options)
    store = FeatureStore(out)
    return {key: store.read(key) for key in store.ids}


def assert_same(found, expected):
    assert list(found) == list(expected)
    for key, rows in expected.items():
        np.testing.assert_array_equal(found[key], rows.reshape(-1, D))


@pytest.mark.parametrize("array", [POOLED, REGIONS, REGIONS.reshape(N, R, 1, D)])
def test_an_array_and_a_list_of_ids(array, save, ids_path, out):
    assert_same(import_all(open_source(save(array), ids_path=ids_path), out), dict(zip(IDS, array)))
    assert FeatureStore(out).attributes["imported_from"] == "features.npy"


@pytest.mark.parametrize(
    ("given", "asked", "stored"),
    [
        ("float16", None, "float16"),
        ("float32", None, "float32"),
        ("float64", None, "float32"),
        ("float64", "float16", "float16"),
        (">f4", None, "float32"),
    ],
)
def test_the_dtype_is_the_source_s_own_unless_asked(given, asked, stored, save, ids_path, out):
    source = open_source(save(POOLED.astype(given)), ids_path=ids_path)
    found = import_all(source, out, dtype=asked)
    assert {rows.dtype.name for rows in found.values()} == {stored}
    assert_same(found, dict(zip(IDS, POOLED)))


def test_a_folder_of_npy_files_one_an_item(save, tmp_path, out):
    items = {"a": POOLED[0], "b.c": REGIONS[1], "v": REGIONS[2].reshape(1, R, D)}
    for key, rows in items.items():
        save(rows, f"folder/{key}.npy")
    (tmp_path / "folder" / "readme.txt").write_text("")
    assert_same(import_all(open_source(tmp_path / "folder"), out), items)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("array", [POOLED, REGIONS])
def test_an_npz_with_an_array_an_item_or_with_features_and_ids(save, array, tmp_path, out):
    expected = dict(zip(IDS, array))
    save(tmp_path / "items.npz", **expected)
    assert_same(import_all(open_source(tmp_path / "items.npz"), out), expected)
    save(tmp_path / "pair.npz", features=array, ids=np.array(IDS))
    found = import_all(open_source(tmp_path / "pair.npz"), out, overwrite=True)
    assert_same(found, expected)


@pytest.mark.parametrize("repeats", [1, 5])
@pytest.mark.parametrize("with_ids", [True, False])
def test_vse_features_stand_once_or_five_times(repeats, with_ids, save, tmp_path, ids_path, out):
    path = save(np.repeat(POOLED, repeats, axis=0), "dev_ims.npy")
    lines(tmp_path / "dev_caps.txt", 5 * N)
    keys = IDS if with_ids else ["0", "1", "2", "3"]
    for options in ({"ids_path": ids_path},) if with_ids else ({},):
        source = open_source(path, **options)
        found = import_all(source, out, overwrite=True)
        assert_same(found, dict(zip(keys, POOLED)))


def test_an_id_list_may_repeat_with_the_rows(save, tmp_path, out):
    (tmp_path / "ids.txt").write_text("x\nx\ny\nz\nz\n")
    path = save(POOLED[[0, 0, 1, 2, 2]])
    found = import_all(open_source(path, ids_path=str(tmp_path / "ids.txt")), out)
    assert_same(found, {"x": POOLED[0], "y": POOLED[1], "z": POOLED[2]})


def test_rows_that_should_repeat_but_differ_are_refused(save, tmp_path, ids_path, out):
    rows = np.repeat(POOLED, 5, axis=0)
    rows[11, 1] += 1
    path = save(rows)
    lines(tmp_path / "x_caps.txt", 5 * N)
    message = r"rows 10 to 14 belong to .* row 11 differs from row 10"
    with pytest.raises(UserError, match=message):
        import_all(open_source(path, ids_path=ids_path), out)
    with pytest.raises(UserError, match=message):
        import_all(open_source(save(rows, "x_ims.npy")), out + "2")


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_pickles_are_never_loaded(save, tmp_path, ids_path, out, monkeypatch):
    monkeypatch.chdir(tmp_path)
    objects = np.empty(1, dtype=object)
    objects[0] = Bomb()
    path = save(objects, "folder/objects.npy")
    np.savez(tmp_path / "item.npz", x=objects)
    np.savez(tmp_path / "pair.npz", features=objects, ids=np.array(["x"]))
    np.savez(tmp_path / "ids.npz", features=POOLED, ids=np.array([Bomb()]))
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(Bomb()))
    opened = [
        lambda: open_source(path, ids_path=ids_path),
        lambda: open_source(path.parent),
        lambda: open_source(tmp_path / "pickle.npy", ids_path=ids_path),
        lambda: open_source(tmp_path / "item.npz"),
        lambda: open_source(tmp_path / "pair.npz"),
        lambda: open_source(tmp_path / "ids.npz"),
    ]
    for attempt in opened:
        with pytest.raises(UserError, match=r"pickle|Python objects"):
            import_all(attempt(), out)
    assert not (tmp_path / "exploded").exists()


def test_sources_that_cannot_be_imported_are_named(save, tmp_path):
    def text(name, content):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    ids = {name: str(text(name, b"".join(b"%d\n" % i for i in range(n)))) for name, n in COUNTS}
    latin = str(text("latin.txt", b"\xfc.jpg\n"))
    cut = save(POOLED, "cut.npy")
    os.truncate(cut, os.path.getsize(cut) - 1)
    np.savez(tmp_path / "archive", x=POOLED)
    np.savez(tmp_path / "pair.npz", features=POOLED, ids=np.array(IDS[:3]))
    array = save(POOLED)
    save(np.ones((7, D)), "x_ims.npy")
    text("x_caps.txt", b"caption\n" * 36)
    (tmp_path / "folder").mkdir()
    damaged = "cannot be read"
    shape, needs = "must be a folder of .npy or .npz files", "--ids FILE with one a line"
    cases = [
        (text("text.npy", b"hello"), {"ids_path": ids["4.txt"]}, damaged),
        (text("text.npz", b"hello"), {}, damaged),
        (cut, {"ids_path": ids["4.txt"]}, damaged),
        ((tmp_path / "archive.npz").rename(tmp_path / "a.npy"), {"ids_path": latin}, damaged),
        (text("features.csv", b"1"), {}, shape),
        (tmp_path / "missing.npz", {}, "missing.npz: cannot be read .No such file"),
        (tmp_path / "folder", {}, "folder: cannot be imported .it has no items"),
        (tmp_path / "folder", {"ids_path": latin}, shape),
        (array, {"array": "x"}, shape),
        (array, {}, needs),
        (array, {"ids_path": "none.txt"}, r"none.txt: cannot be read \(No such file"),
        (array, {"ids_path": latin}, "latin.txt:1: must be UTF-8 text"),
        (array, {"ids_path": ids["3.txt"]}, "it has 4 rows: must have one or 5 for each of 3"),
        (array, {"ids_path": ids["0.txt"]}, "for each of 0"),
        (tmp_path / "x_ims.npy", {}, "it has 7 rows: .* each of 7 images"),
        (tmp_path / "pair.npz", {}, "has 3 `ids`, but 4 items of `features`"),
    ]
    for path, options, message in cases:
        with pytest.raises(UserError, match=message):
            open_source(path, **options)


COUNTS = (("0.txt", 0), ("3.txt", 3), ("4.txt", 4))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (np.ones((9, 7, 7)), r"the channels last\), but are \[9, 7, 7\] of float64"),
        (np.ones((1, 1, 1, D)), r"must be floats \[D\], .*, but are \[1, 1, 1, 5\]"),
        (np.ones((0, D)), r"but are \[0, 5\]"),
        (np.ones(D, dtype=int), r"but are \[5\] of int64"),
        (np.float32(1), r"but are \[\] of float32"),
        (np.full(D, np.nan), "the features of 'b' have NaN or infinite values"),
        (np.ones((2, 6)), r"'b' must be \[rows, 5\]"),
    ],
)
def test_an_item_that_cannot_be_stored_is_named(item, message, save, tmp_path, out):
    save(POOLED[0], "folder/a.npy")
    save(item, "folder/b.npy")
    with pytest.raises(UserError, match=f"(b.npy|out.h5): .*{message}"):
        import_all(open_source(tmp_path / "folder"), out)


def interrupted(keys):
    yield from keys[:2]
    raise KeyboardInterrupt


def test_nothing_of_a_refused_file_is_in_the_store_of_the_corrected_one(save, ids_path, out):
    with_nan = POOLED.copy()
    with_nan[2, 0] = np.nan
    with pytest.raises(UserError, match="NaN or infinite values"):
        import_all(open_source(save(with_nan), ids_path=ids_path), out)
    assert not os.path.exists(f"{out}.partial")
    with pytest.raises(KeyboardInterrupt):
        import_all(open_source(save(POOLED), ids_path=ids_path), out, progress=interrupted)
    corrected = POOLED + 1
    found = import_all(open_source(save(corrected), ids_path=ids_path), out)
    assert_same(found, dict(zip(IDS, corrected[:, None])))


def test_the_extractor_is_named_as_extract_names_it(tmp_path):
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"weights")
    assert extractor_attributes() == {}
    assert extractor_attributes(
        extractor="vgg16", weights=str(weights), layer="fc7", preprocessing="{}"
    ) == {
        "extractor": "vgg16",
        "weights": hashlib.sha256(b"weights").hexdigest(),
        "layer": "fc7",
        "grid": 0,
        "preprocessing": "{}",
    }
    named = extractor_attributes(extractor="x", weights="torchvision:IMAGENET1K_V1", grid=True)
    assert named == {"extractor": "x", "weights": "torchvision:IMAGENET1K_V1", "grid": 1}
    with pytest.raises(UserError, match=r"none.pt: cannot be read .No such file"):
        extractor_attributes(weights="none.pt")


def test_flickr8k_features_are_imported_exactly(shared_data, out):
    folder = shared_data("flickr8k")
    source = open_source(
        folder / "mobilenet_v2_pool_f16.npy", ids_path=str(folder / "image_ids.txt")
    )
    import_features(source, out, attributes={})
    store = FeatureStore(out)
    assert (len(store), store.dim, store.dtype) == (7000, 1280, np.float16)
    array = np.load(folder / "mobilenet_v2_pool_f16.npy", mmap_mode="r")
    for i in (0, 1, 3500, 6999):
        np.testing.assert_array_equal(store.read(source.keys[i]), array[i : i + 1])
