"""Nearest vectors: exact and stable search in memory and in a feature store."""

import numpy as np
import pytest
import torch
from numerics import assert_close

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError
from fairseq_mm.retrieval import nearest_vectors
from fairseq_mm.retrieval.nearest_vectors import VectorStore, nearest


def write_store(path, vectors, *, ids=None):
    vectors = np.asarray(vectors)
    ids = ids or [f"item {i}" for i in range(len(vectors))]
    with FeatureStoreWriter(path, dim=vectors.shape[-1], dtype="float32", attributes={}) as writer:
        for key, rows in zip(ids, vectors):
            writer.append(key, rows)
        writer.finish()
    return VectorStore(FeatureStore(path))


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
    monkeypatch.setattr(nearest_vectors, "_PIECE", 9)
    monkeypatch.setattr(nearest_vectors, "_QUERIES", 2)


@pytest.mark.parametrize("k", [1, 4, 9, 17, 100])
@pytest.mark.usefixtures("small_blocks")
def test_search_equals_sorting_all_cosines(tmp_path, k):
    vectors = random_vectors(41, 6)
    vectors[[3, 20, 21, 39]] = vectors[11]  # ties, in several blocks
    vectors[30] = 2 * vectors[11]
    queries = np.concatenate([random_vectors(4, 6, seed=2), 3 * vectors[[11]]])
    store = write_store(tmp_path / "v.h5", vectors)
    found = store.search(queries, k)
    assert found == naive_search(queries, vectors, k)
    ids = [key for key, _ in found[4]]
    assert ids[: min(k, 6)] == [f"item {i}" for i in (3, 11, 20, 21, 30, 39)][:k]


def test_equal_vectors_come_in_the_order_of_the_store(tmp_path):
    vectors = np.repeat(random_vectors(1, 33), 3000, axis=0)
    store = write_store(tmp_path / "v.h5", vectors)
    found = store.search(torch.from_numpy(vectors[:1]), 70)[0]
    assert [key for key, _ in found] == [f"item {i}" for i in range(70)]
    assert_close(found[0][1], 1)


@pytest.mark.usefixtures("small_blocks")
def test_nearest_does_not_depend_on_blocks():
    queries, candidates = random_vectors(5, 7), random_vectors(50, 7, seed=3)
    places, products = nearest(queries, candidates, 12)
    scores = queries.astype(np.float64) @ candidates.T.astype(np.float64)
    assert places.tolist() == np.argsort(-scores, axis=1, kind="stable")[:, :12].tolist()
    np.testing.assert_allclose(products, -np.sort(-scores, axis=1)[:, :12], rtol=1e-12)


def test_left_out_items_make_room_for_others(tmp_path):
    vectors = random_vectors(8, 5)
    store = write_store(tmp_path / "v.h5", vectors)
    plain = store.search(vectors[:2], 5)
    found = store.search(vectors[:2], 3, exclude=["item 0", plain[0][2][0]])
    assert found[0] == [plain[0][1], plain[0][3], plain[0][4]]


def test_vectors_without_a_direction_are_refused(tmp_path):
    store = write_store(tmp_path / "v.h5", random_vectors(6, 4))
    with pytest.raises(UserError, match=r"^query vector 1 is zero: it has no direction"):
        store.search(np.eye(4)[:2] * [[1], [0]], 1)
    with pytest.raises(UserError, match=r"zero.h5: vector 3 is zero"):
        write_store(tmp_path / "zero.h5", np.eye(4)[:, :3])
    # rows of image regions are no vectors
    with pytest.raises(UserError, match=r"rows.h5: must have one vector an item, but has 12 vect"):
        write_store(tmp_path / "rows.h5", random_vectors(12, 4).reshape(6, 2, 4))
    with pytest.raises(UserError, match=r"empty.h5: must have one vector an item, but has 0"):
        write_store(tmp_path / "empty.h5", np.zeros((0, 4)))
