"""Importers: every layout that people have becomes the same store, and no pickle is ever loaded."""

import hashlib
import os
import pickle

import numpy as np
import pytest

from fairseq_mm.data.feature_importers import extractor_attributes, import_features, open_source
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
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


def test_a_folder_of_npz_files(tmp_path, out):
    for i, save in enumerate((np.savez, np.savez_compressed)):
        save(tmp_path / f"{i}.npz", feat=REGIONS[i], box=np.ones(4))
    source = open_source(tmp_path, array="feat")
    assert_same(import_all(source, out), {"0": REGIONS[0], "1": REGIONS[1]})
    with pytest.raises(UserError, match=r"0.npz: must have one array, or --array NAME, but has: f"):
        import_all(open_source(tmp_path), out)
    with pytest.raises(UserError, match=r"0.npz: must have an array 'fc', but has: feat, box"):
        import_all(open_source(tmp_path, array="fc"), out)


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
    rows[12, 1] += 1
    path = save(rows)
    lines(tmp_path / "x_caps.txt", 5 * N)
    message = r"rows 10 to 14 belong to .* row 12 differs from row 10"
    with pytest.raises(UserError, match=message):
        import_all(open_source(path, ids_path=ids_path), out)
    with pytest.raises(UserError, match=message):
        import_all(open_source(save(rows, "x_ims.npy")), out + "2")


def test_counts_that_do_not_fit_are_refused(save, tmp_path, ids_path):
    path = save(np.ones((7, D)))
    with pytest.raises(UserError, match=r"features.npy has 7 rows, but .*ids.txt has 4 ids"):
        open_source(path, ids_path=ids_path)
    lines(tmp_path / "x_caps.txt", 36)
    with pytest.raises(UserError, match=r"has 7 rows, but .*caps.txt has 36 captions"):
        open_source(save(np.ones((7, D)), "x_ims.npy"))
    with pytest.raises(UserError, match="an array needs the ids of its items: --ids FILE"):
        open_source(path)
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(UserError, match=r"empty.txt has 0 ids"):
        open_source(path, ids_path=str(tmp_path / "empty.txt"))
    np.savez(tmp_path / "pair.npz", features=POOLED, ids=np.array(IDS[:3]))
    with pytest.raises(UserError, match="has 3 `ids`, but 4 items of `features`"):
        open_source(tmp_path / "pair.npz")


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
        with pytest.raises(UserError, match=r"pickled Python objects, .* numpy.save\('plain.npy'"):
            import_all(attempt(), out)
    assert not (tmp_path / "exploded").exists()


def test_files_that_cannot_be_imported_are_named(save, tmp_path, ids_path):
    (tmp_path / "text.npy").write_text("hello")
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "features.csv").write_text("1")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"text.npy: (holds pickled|is no numpy file)"):
        open_source(tmp_path / "text.npy", ids_path=ids_path)
    with pytest.raises(UserError, match=r"text.npz: (holds pickled|is no numpy file)"):
        open_source(tmp_path / "text.npz")
    np.savez(tmp_path / "archive", x=POOLED)
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    with pytest.raises(UserError, match=r"archive.npy: must hold one array, but is an archive"):
        open_source(tmp_path / "archive.npy", ids_path=ids_path)
    np.save(tmp_path / "single", POOLED)
    (tmp_path / "single.npy").rename(tmp_path / "single.npz")
    with pytest.raises(UserError, match=r"single.npz: must be an .npz archive, but holds a single"):
        open_source(tmp_path / "single.npz")
    with pytest.raises(UserError, match=r"features.csv: must be a folder, an .npy or an .npz file"):
        open_source(tmp_path / "features.csv")
    with pytest.raises(UserError, match="missing: not found"):
        open_source(tmp_path / "missing")
    with pytest.raises(UserError, match=r"folder: no files \*.npy in this folder"):
        open_source(tmp_path / "folder")
    path = save(POOLED)
    os.truncate(path, os.path.getsize(path) - 1)
    with pytest.raises(UserError, match=r"features.npy: is no numpy file, or is cut short"):
        open_source(path, ids_path=ids_path)
    with pytest.raises(UserError, match=r"none.txt: cannot be read \(No such file"):
        open_source(save(POOLED), ids_path=str(tmp_path / "none.txt"))
    (tmp_path / "gap.txt").write_text("a\n\nb\n")
    with pytest.raises(UserError, match=r"gap.txt:2: is empty"):
        open_source(path, ids_path=str(tmp_path / "gap.txt"))
    (tmp_path / "latin.txt").write_bytes(b"\xfc.jpg\n")
    with pytest.raises(UserError, match=r"latin.txt:1: must be UTF-8 text"):
        open_source(path, ids_path=str(tmp_path / "latin.txt"))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_that_is_damaged_is_named(save, tmp_path, out):
    path = tmp_path / "pair.npz"
    features = np.random.default_rng(1).integers(1, 4, (9, 2000)).astype(np.float16)
    save(path, features=features, ids=np.arange(9).astype(str))
    content = bytearray(path.read_bytes())
    content[3000:3050] = bytes(50)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"pair.npz: features: is damaged: .* Replace the file"):
        import_all(open_source(path), out)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("features.npy", {"array": "x"}, "--array is for a folder"),
        ("folder", {"ids_path": "x"}, "--ids is for one .npy file"),
    ],
)
def test_options_that_do_not_fit_are_refused(name, options, message, save, tmp_path):
    save(POOLED)
    save(POOLED[0], "folder/a.npy")
    with pytest.raises(UserError, match=message):
        open_source(tmp_path / name, **options)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (np.ones((9, 7, 7)), r"a grid must be \[H, W, D\] with the channels last, but is \[9, 7"),
        (np.ones((1, 1, 1, D)), r"must be \[D\], \[R, D\] or \[H, W, D\], but is \[1, 1, 1, 5\]"),
        (np.ones(0), r"holds no features: its shape is \[0\]"),
        (np.ones((1, 0)), r"holds no features: its shape is \[1, 0\]"),
        (np.ones(D, dtype=int), "must be floating point numbers, but are int64"),
        (np.float32(1), r"must be \[D\], .* but is \[\]"),
        (np.full(D, np.nan), "the features of 'b' have NaN or infinite values"),
        (np.ones((0, D)), r"'b' must be \[rows, 5\] with one row or more, but are \[0, 5\]"),
        (np.ones((2, 6)), r"'b' must be \[rows, 5\]"),
    ],
)
def test_an_item_that_cannot_be_stored_is_named(item, message, save, tmp_path, out):
    save(POOLED[0], "folder/a.npy")
    save(item, "folder/b.npy")
    with pytest.raises(UserError, match=f"(b.npy|out.h5): .*{message}"):
        import_all(open_source(tmp_path / "folder"), out)


def test_an_id_that_stands_for_two_items_is_refused_at_the_start(save, tmp_path):
    (tmp_path / "ids.txt").write_text("x\ny\nx\nz\n")
    with pytest.raises(UserError, match=r"features.npy: the id 'x' stands for two items"):
        open_source(save(POOLED), ids_path=str(tmp_path / "ids.txt"))


def test_an_interrupted_import_continues_with_the_same_rows_alone(save, ids_path, out):
    path = save(REGIONS)
    stops = iter(IDS[:2])

    def interrupted(keys):
        yield from (key for key, _ in zip(keys, stops))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_all(open_source(path, ids_path=ids_path), out, progress=interrupted)
    others = REGIONS.copy()
    others[1, 0, 0] += 1
    with pytest.raises(UserError, match=f"was begun with other features of '{IDS[1]}'"):
        import_all(open_source(save(others), ids_path=ids_path), out)
    source = open_source(save(REGIONS), ids_path=ids_path)
    assert_same(import_all(source, out), dict(zip(IDS, REGIONS)))


def test_a_partial_of_another_import_is_refused(save, tmp_path, ids_path, out):
    with FeatureStoreWriter(out, dim=D, attributes={"imported_from": "features.npy"}) as writer:
        writer.append("else", POOLED[0])
    with pytest.raises(UserError, match="begun for other items: 'else' is none of these"):
        import_all(open_source(save(POOLED), ids_path=ids_path), out, dtype="float16")


def test_nothing_of_a_refused_file_is_in_the_store_of_the_corrected_one(save, ids_path, out):
    with_nan = POOLED.copy()
    with_nan[2, 0] = np.nan
    with pytest.raises(UserError, match="NaN or infinite values"):
        import_all(open_source(save(with_nan), ids_path=ids_path), out)
    assert not os.path.exists(f"{out}.partial")
    corrected = POOLED + 1
    found = import_all(open_source(save(corrected), ids_path=ids_path), out)
    assert_same(found, dict(zip(IDS, corrected[:, None])))


def test_a_streamed_archive_continues_in_its_middle(tmp_path, out):
    path = tmp_path / "pair.npz"
    np.savez_compressed(path, features=REGIONS, ids=np.array(IDS))
    attributes = {"imported_from": "pair.npz"}
    with FeatureStoreWriter(out, dim=D, attributes=attributes) as writer:
        writer.append(IDS[1], REGIONS[1])
        writer.append(IDS[2], REGIONS[2])
    found = import_all(open_source(path), out)
    assert_same({key: found[key] for key in IDS}, dict(zip(IDS, REGIONS)))


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
    with pytest.raises(UserError, match=r"none.pt: weights file not found"):
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


def test_how2_features_have_as_many_rows_as_frames(shared_data, out):
    folder = shared_data("how2/clips/video_action_features")
    import_features(open_source(folder), out, attributes={}, dtype="float16")
    store = FeatureStore(out)
    assert (len(store), store.dim) == (12, 2048)
    assert sorted(store.count_rows(key) for key in store.ids)[0] == 88
    video = np.load(folder / "KtMjOT6fDrw.npy")
    np.testing.assert_array_equal(store.read("KtMjOT6fDrw"), video.astype(np.float16))
