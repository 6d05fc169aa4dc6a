"""Equations 12 to 15 of Kiros et al. 2014 by naive code, and what is refused."""

import math

import numpy as np
import pytest
from numerics import assert_close

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.nearest_vectors import (
    VectorStore,
    retrieve_shifted,
    shifted_vector,
)


def random_vectors(count, dim, seed):
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def unit(vector):
    return [x / math.sqrt(sum(y * y for y in vector)) for x in vector]


def naive_shift(query, minus, plus):
    total = unit(query)
    for word in minus:
        total = [a - b for a, b in zip(total, unit(word))]
    for word in plus:
        total = [a + b for a, b in zip(total, unit(word))]
    return unit(total)


def write_vectors(folder, vectors):
    with FeatureStoreWriter(folder / "v.h5", dim=vectors.shape[1], attributes={}) as writer:
        for i, vector in enumerate(vectors):
            writer.append(str(i), vector)
        writer.finish()
    return VectorStore(FeatureStore(folder / "v.h5"))


@pytest.mark.parametrize(("num_minus", "num_plus"), [(0, 0), (1, 0), (0, 1), (1, 1), (2, 3)])
def test_shift_equals_the_equation(num_minus, num_plus):
    query = 5 * random_vectors(1, 7, 1)[0]
    minus, plus = random_vectors(num_minus, 7, 2), 0.1 * random_vectors(num_plus, 7, 3)
    expected = naive_shift(query.tolist(), minus.tolist(), plus.tolist())
    shifted = shifted_vector(query, minus, plus)
    assert shifted.dtype == np.float32
    assert_close(shifted, expected)
    if not num_minus and not num_plus:
        np.testing.assert_array_equal(shifted, shifted_vector(query))


@pytest.mark.parametrize(("top", "resort"), [(3, 0), (3, 9), (9, 9), (4, 2), (40, 50)])
def test_retrieval_equals_naive_sorting(tmp_path, top, resort):
    vectors = random_vectors(30, 6, 4).astype(np.float16)
    store = write_vectors(tmp_path, vectors)
    query, minus, plus = vectors[12], random_vectors(1, 6, 5), random_vectors(2, 6, 6)
    found = retrieve_shifted(
        store, query, minus=minus, plus=plus, top=top, resort=resort, exclude=["12"]
    )
    wanted = naive_shift(query.tolist(), minus.tolist(), plus.tolist())
    units = {i: unit(vectors[i].tolist()) for i in range(30) if i != 12}
    cosines = {i: sum(a * b for a, b in zip(v, wanted)) for i, v in units.items()}
    nearest = sorted(units, key=lambda i: -cosines[i])[: max(top, resort)]
    mean = [sum(units[i][k] for i in nearest) / len(nearest) for k in range(6)]
    distances = {i: math.dist(units[i], mean) for i in nearest}
    order = sorted(nearest, key=distances.get) if resort >= top else nearest
    assert [item.id for item in found] == [str(i) for i in order[:top]]
    for item in found:
        i = int(item.id)
        assert_close(item.score, cosines[i])
        if resort >= top:
            assert_close(item.distance_to_mean, distances[i])
        else:
            assert item.distance_to_mean is None
        assert item.rank == nearest.index(i) + 1


def test_words_that_cancel_the_query_are_refused():
    query = np.array([1.0, 0, 0])
    with pytest.raises(UserError, match="the query and its words cancel out"):
        shifted_vector(query, minus=3 * query[None])
