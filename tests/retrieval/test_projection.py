"""Principal components against the eigenvectors of the covariance, and what is refused."""

import numpy as np
import pytest
import torch
from numerics import assert_close

from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.projection import principal_components


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


def test_coordinates_of_vectors_are_centred_and_others_are_projected_likewise():
    vectors = random_vectors(23, 5)
    found = principal_components(torch.from_numpy(vectors).to(torch.float32))
    coordinates = found(vectors)
    assert coordinates.shape == (23, 2)
    assert_close(coordinates.mean(0), 0)
    other = vectors[0] + 2 * found.components[1]
    assert_close(found(other[None])[0], coordinates[0] + [0, 2])


def test_points_of_a_line_have_one_direction():
    # (0, 0), (3, 4), (6, 8): direction (0.6, 0.8), coordinates -5, 0, 5
    found = principal_components(np.array([[0, 0], [3, 4], [6, 8]]), 1)
    np.testing.assert_allclose(found.components, [[0.6, 0.8]])
    np.testing.assert_allclose(found.variance_shares, [1])
    np.testing.assert_allclose(found(np.array([[0, 0], [3, 4], [6, 8]])), [[-5], [0], [5]])


def test_mistakes_are_one_line():
    with pytest.raises(UserError, match="2 vectors of dimension 5 have at most 1 principal comp"):
        principal_components(random_vectors(2, 5))
    with pytest.raises(UserError, match="the 4 vectors are all equal"):
        principal_components(np.full((4, 3), 0.1))
    with pytest.raises(UserError, match="projected vector 0 has NaN"):
        principal_components(np.full((4, 3), np.nan))
    found = principal_components(random_vectors(23, 5))
    with pytest.raises(UserError, match="projected vectors have dimension 4, but the projection's"):
        found(np.ones((1, 4)))
