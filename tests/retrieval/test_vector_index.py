"""The index on disk: exact and stable search, what it was made of, and runs that were killed."""

import errno
import json
import os

import numpy as np
import pytest
import torch
from numerics import assert_close

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError
from fairseq_mm.retrieval import vector_index
from fairseq_mm.retrieval.vector_index import VectorIndex, build_index, nearest


def write_store(path, vectors, *, ids=None, dtype="float32", overwrite=False):
    vectors = np.asarray(vectors)
    ids = ids or [f"item {i}" for i in range(len(vectors))]
    with FeatureStoreWriter(
        path, dim=vectors.shape[-1], dtype=dtype, attributes={}, overwrite=overwrite
    ) as writer:
        for key, rows in zip(ids, vectors):
            writer.append(key, rows)
        writer.finish()
    return FeatureStore(path)


def random_vectors(count, dim, seed=1):
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def naive_search(queries, vectors, k):
    """Every cosine in float64, sorted by cosine and then by place."""
    unit = [np.float32(v / np.linalg.norm(v)) for v in np.float64(vectors)]
    found = []
    for query in np.float64(queries):
        query = np.float32(query / np.linalg.norm(query))
        cosines = [(np.float64(query) * v).sum() for v in unit]
        order = sorted(range(len(vectors)), key=lambda i: (-cosines[i], i))[:k]
        found.append([(f"item {i}", cosines[i]) for i in order])
    return found


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(vector_index, "_PIECE", 9)
    monkeypatch.setattr(vector_index, "_QUERIES", 2)


@pytest.mark.parametrize("k", [1, 4, 9, 17, 100])
@pytest.mark.usefixtures("small_blocks")
def test_search_equals_sorting_all_cosines(tmp_path, k):
    vectors = random_vectors(41, 6)
    vectors[[3, 20, 21, 39]] = vectors[11]  # ties, in several blocks
    vectors[30] = 2 * vectors[11]
    queries = np.concatenate([random_vectors(4, 6, seed=2), 3 * vectors[[11]]])
    index = build_index(write_store(tmp_path / "v.h5", vectors), tmp_path / "index")
    found = index.search(queries, k)
    assert found == naive_search(queries, vectors, k)
    ids = [item.id for item in found[4]]
    assert ids[: min(k, 6)] == [f"item {i}" for i in (3, 11, 20, 21, 30, 39)][:k]


def test_equal_vectors_come_in_the_order_of_the_store(tmp_path):
    vectors = np.repeat(random_vectors(1, 33), 3000, axis=0)
    index = build_index(write_store(tmp_path / "v.h5", vectors), tmp_path / "index")
    found = index.search(torch.from_numpy(vectors[:1]), 70)[0]
    assert [item.id for item in found] == [f"item {i}" for i in range(70)]
    assert_close(found[0].similarity, 1)


@pytest.mark.usefixtures("small_blocks")
def test_nearest_does_not_depend_on_blocks():
    queries, candidates = random_vectors(5, 7), random_vectors(50, 7, seed=3)
    places, products = nearest(queries, candidates, 12)
    scores = queries.astype(np.float64) @ candidates.T.astype(np.float64)
    assert places.tolist() == np.argsort(-scores, axis=1, kind="stable")[:, :12].tolist()
    np.testing.assert_allclose(products, -np.sort(-scores, axis=1)[:, :12], rtol=1e-12)


def test_left_out_items_make_room_for_others(tmp_path):
    vectors = random_vectors(8, 5)
    index = build_index(write_store(tmp_path / "v.h5", vectors), tmp_path / "index")
    plain = index.search(vectors[:2], 5)
    found = index.search(vectors[:2], 3, exclude=[["item 0", plain[0][2].id], []])
    assert found[0] == [plain[0][1], plain[0][3], plain[0][4]]
    assert found[1] == plain[1][:3]


def test_a_finished_index_is_opened_and_not_made_again(tmp_path):
    store = write_store(tmp_path / "v.h5", random_vectors(6, 4), dtype="float16")
    build_index(store, tmp_path / "index")
    made = (tmp_path / "index" / "vectors.npy").stat().st_mtime_ns
    steps = []
    again = build_index(store, tmp_path / "index", on_items=steps.append)
    assert steps == []
    assert (tmp_path / "index" / "vectors.npy").stat().st_mtime_ns == made
    assert isinstance(again.vectors, np.memmap)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index", "v.h5"]
    assert sorted(p.name for p in (tmp_path / "index").iterdir()) == ["index.json", "vectors.npy"]
    np.testing.assert_allclose(np.linalg.norm(again.vectors, axis=1), 1, rtol=1e-6)


def test_an_index_of_changed_vectors_is_refused_and_made_anew(tmp_path):
    vectors = random_vectors(6, 4)
    build_index(write_store(tmp_path / "v.h5", vectors), tmp_path / "index")
    vectors[5, 0] += 1
    store = write_store(tmp_path / "v.h5", vectors, overwrite=True)
    with pytest.raises(UserError, match=r"index: is an index of other vectors than .*v\.h5 has"):
        VectorIndex(tmp_path / "index", store)
    index = build_index(store, tmp_path / "index")
    assert index.search(vectors[5:], 1)[0][0].id == "item 5"
    assert VectorIndex(tmp_path / "index", store).ids == store.ids


def test_a_copied_store_has_the_same_index(tmp_path):
    vectors = random_vectors(6, 4)
    build_index(write_store(tmp_path / "v.h5", vectors), tmp_path / "index")
    copied = write_store(tmp_path / "copy.h5", vectors)
    assert len(VectorIndex(tmp_path / "index", copied)) == 6


@pytest.mark.usefixtures("small_blocks")
def test_a_killed_run_continues(tmp_path):
    vectors = random_vectors(31, 4)
    store = write_store(tmp_path / "v.h5", vectors)

    def kill_after_two(count):
        steps.append(count)
        if len(steps) == 3:
            raise KeyboardInterrupt

    steps = []
    with pytest.raises(KeyboardInterrupt):
        build_index(store, tmp_path / "index", on_items=kill_after_two)
    assert steps == [0, 9, 9]
    assert not (tmp_path / "index").exists()
    steps = []
    index = build_index(store, tmp_path / "index", on_items=steps.append)
    assert steps == [18, 9, 4]
    assert index.search(vectors, 1) == naive_search(vectors, vectors, 1)


@pytest.mark.usefixtures("small_blocks")
def test_a_run_for_other_vectors_is_not_continued(tmp_path):
    store = write_store(tmp_path / "v.h5", random_vectors(31, 4))

    def kill(count):
        if count:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(store, tmp_path / "index", on_items=kill)
    vectors = random_vectors(31, 4, seed=9)
    store = write_store(tmp_path / "v.h5", vectors, overwrite=True)
    steps = []
    index = build_index(store, tmp_path / "index", on_items=steps.append)
    assert steps[0] == 0
    assert index.search(vectors, 1) == naive_search(vectors, vectors, 1)


def test_mistakes_are_one_line(tmp_path):
    store = write_store(tmp_path / "v.h5", random_vectors(6, 4))
    index = build_index(store, tmp_path / "index")
    with pytest.raises(UserError, match=r"query vectors have dimension 3, but .*index: vectors"):
        index.search(np.ones((1, 3)), 1)
    with pytest.raises(UserError, match=r"^query vector 1 is zero: it has no direction"):
        index.search(np.eye(4)[:2] * [[1], [0]], 1)
    with pytest.raises(UserError, match="index: has no vector of 'a'"):
        index.vectors_of(["item 2", "a"])
    with pytest.raises(UserError, match=r"nothing: is no index of vectors \(index.json is missing"):
        VectorIndex(tmp_path / "nothing")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="nothing: stands there already, and is no index"):
        build_index(store, tmp_path / "nothing")
    rows = write_store(tmp_path / "rows.h5", random_vectors(12, 4).reshape(6, 2, 4))
    with pytest.raises(UserError, match=r"rows.h5: must have one row an item, but 'item 0' has 2"):
        build_index(rows, tmp_path / "other")
    zero = write_store(tmp_path / "zero.h5", np.eye(4)[:, :3])
    with pytest.raises(UserError, match=r"zero.h5: vector 3 \(item 3\) is zero"):
        build_index(zero, tmp_path / "other")
    empty = write_store(tmp_path / "empty.h5", np.zeros((0, 4)))
    with pytest.raises(UserError, match=r"empty.h5: must have vectors, but has no items"):
        build_index(empty, tmp_path / "other")
    blocked = tmp_path / "v.h5" / "index"
    with pytest.raises(UserError, match=r"cannot be written \(Not a directory\)"):
        build_index(store, blocked)


def test_a_damaged_index_is_refused(tmp_path):
    index = build_index(write_store(tmp_path / "v.h5", random_vectors(6, 4)), tmp_path / "index")
    record = json.loads((index.folder / "index.json").read_text())
    np.save(index.folder / "vectors.npy", np.ones((5, 4), dtype=np.float32))
    with pytest.raises(UserError, match=r"must be float32 \[6, 4\], but is float32 \[5, 4\]"):
        VectorIndex(index.folder)
    (index.folder / "vectors.npy").unlink()
    with pytest.raises(UserError, match=r"vectors.npy: is missing; delete"):
        VectorIndex(index.folder)
    (index.folder / "index.json").write_text(json.dumps({**record, "format_version": 2}))
    with pytest.raises(UserError, match="must be the record of an index of format 1"):
        VectorIndex(index.folder)
    (index.folder / "index.json").write_text("{")
    with pytest.raises(UserError, match=r"index.json: cannot be read \(not JSON"):
        VectorIndex(index.folder)
    for damage in ({"ids": None}, {"ids": "item"}, {"dim": None}):
        kept = {k: v for k, v in {**record, **damage}.items() if v is not None}
        (index.folder / "index.json").write_text(json.dumps(kept))
        with pytest.raises(UserError, match="must be the record of an index of format 1"):
            VectorIndex(index.folder)


def test_damaged_vectors_are_one_line(tmp_path):
    index = build_index(write_store(tmp_path / "v.h5", random_vectors(6, 4)), tmp_path / "index")
    vectors = np.array(index.vectors)
    vectors[2, 1] = np.nan
    np.save(index.folder / "vectors.npy", vectors)
    with pytest.raises(UserError, match=r"index: vectors 0 to 5 have NaN or infinity\. Delete"):
        VectorIndex(index.folder).search(random_vectors(1, 4), 3)


@pytest.mark.parametrize("gone", [("vectors.npy",), ("vectors.npy", "index.json")])
def test_a_run_that_was_killed_while_it_replaced_an_index_is_followed_by_another(tmp_path, gone):
    build_index(write_store(tmp_path / "v.h5", random_vectors(6, 4)), tmp_path / "index")
    for name in gone:
        (tmp_path / "index" / name).unlink()
    vectors = random_vectors(6, 4, seed=9)
    store = write_store(tmp_path / "v.h5", vectors, overwrite=True)
    index = build_index(store, tmp_path / "index")
    assert index.search(vectors, 1) == naive_search(vectors, vectors, 1)


def test_a_full_disk_is_one_line_and_no_signal(tmp_path, monkeypatch):
    def refuse(handle, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = write_store(tmp_path / "v.h5", random_vectors(6, 4))
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(UserError, match=r"vectors.npy: cannot be written \(No space left"):
        build_index(store, tmp_path / "index")
    monkeypatch.undo()
    assert len(build_index(store, tmp_path / "index")) == 6
