"""Projection of vectors of words and images onto their principal components (Kiros et al. 2014,
supplementary material 5.1, figure 5)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.exact_products import check_same_dimension, float32_rows


@dataclass(frozen=True)
class Projection:
    """
    Args:
        mean: ``[K]`` of the vectors that it was made of.
        components: ``[C, K]`` orthonormal directions, the one of the largest variance first; the
            largest entry of each, in absolute value, is positive.
        variance_shares: ``[C]`` of each direction in the whole variance, at most 1 together.
    """

    mean: np.ndarray
    components: np.ndarray
    variance_shares: np.ndarray

    def __call__(self, vectors: Any) -> np.ndarray:
        """``[n, C]`` coordinates of ``[n, K]`` vectors, also of others than it was made of.

        Raises:
            UserError: if they have another dimension, or are not finite.
        """
        rows = float32_rows(vectors, "projected")
        check_same_dimension(rows, "projected", self.components, "the projection's")
        return (rows.astype(np.float64) - self.mean) @ self.components.T


def principal_components(vectors: Any, count: int = 2) -> Projection:
    """The directions in which the vectors differ most.

    Args:
        vectors: ``[n, K]`` of words and images together, array or tensor.
        count: C.

    Raises:
        UserError: if there are not more vectors than components, fewer dimensions than components,
            all vectors are equal, or one is not finite.
    """
    rows = float32_rows(vectors, "projected").astype(np.float64)
    n, K = rows.shape
    if not 1 <= count <= min(n - 1, K):
        raise UserError(
            f"{n} vectors of dimension {K} have at most {min(n - 1, K)} principal components, but "
            f"{count} are asked for."
        )
    mean = rows.mean(0)
    _, lengths, directions = np.linalg.svd(rows - mean, full_matrices=False)
    variances = lengths**2
    if variances.sum() <= 1e-14 * (rows**2).sum():
        raise UserError(f"the {n} vectors are all equal: they have no principal components.")
    components = directions[:count]
    largest = np.take_along_axis(components, np.abs(components).argmax(1)[:, None], axis=1)
    return Projection(
        mean=mean,
        components=components * np.where(largest < 0, -1.0, 1.0),
        variance_shares=variances[:count] / variances.sum(),
    )
