"""Principal components against the eigenvectors of the covariance, and what is refused."""

import numpy as np
import pytest
import torch
from numerics import assert_close

from fairseq_mm.retrieval.nearest_vectors import principal_components


def random_vectors(count, dim):
    scales = np.arange(dim, 0, -1)
    return (3 + scales * np.random.default_rng(1).standard_normal((count, dim))).astype(np.float32)


@pytest.mark.parametrize(("n", "dim"), [(23, 5), (4, 9)])
def test_components_are_eigenvectors_of_the_covariance(n, dim):
    vectors = random_vectors(n, dim)
    found = principal_components(vectors, 3)
    covariance = np.cov(vectors.astype(np.float64).T)
    values, eigenvectors = np.linalg.eigh(covariance)
    for c in range(3):
        expected = eigenvectors[:, -1 - c]
        if expected[np.abs(expected).argmax()] < 0:
            expected = -expected
        assert_close(found.components[c], expected)
        assert found.variance_shares[c] == pytest.approx(values[-1 - c] / values.sum())


def test_coordinates_are_centred_projections():
    vectors = random_vectors(23, 5)
    found = principal_components(torch.from_numpy(vectors))
    assert found.coordinates.shape == (23, 2)
    assert_close(found.coordinates.mean(0), 0)
    centred = vectors - vectors.mean(0, dtype=np.float64)
    assert_close(found.coordinates, centred @ found.components.T)


def test_points_of_a_line_have_one_direction():
    # (0, 0), (3, 4), (6, 8): direction (0.6, 0.8), coordinates -5, 0, 5
    found = principal_components(np.array([[0, 0], [3, 4], [6, 8]]), 1)
    np.testing.assert_allclose(found.components, [[0.6, 0.8]])
    np.testing.assert_allclose(found.variance_shares, [1])
    np.testing.assert_allclose(found.coordinates, [[-5], [0], [5]])
