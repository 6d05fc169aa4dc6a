"""Projection of vectors of words and images onto their principal components (Kiros et al. 2014,
supplementary material 5.1, figure 5)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.exact_products import check_same_dimension, float32_rows


@dataclass(frozen=True)
class Projection:
    """Projection onto C principal components, with the ``mean`` [K] of the vectors they come from.

    ``components`` are orthonormal directions [C, K] by decreasing variance; the entry of each with
    the largest absolute value is positive. ``variance_shares`` [C] are shares of the whole
    variance.
    """

    mean: np.ndarray
    components: np.ndarray
    variance_shares: np.ndarray

    def __call__(self, vectors: Any) -> np.ndarray:
        """Return the coordinates ``[n, C]`` of any vectors ``[n, K]``. Raise UserError if the
        vectors have another dimension or are not finite."""
        rows = float32_rows(vectors, "projected")
        check_same_dimension(
            rows.shape[1], "projected", self.components.shape[1], "the projection's"
        )
        return (rows.astype(np.float64) - self.mean) @ self.components.T


def principal_components(vectors: Any, count: int = 2) -> Projection:
    """Compute the ``count`` directions in which vectors ``[n, K]`` of words and images differ most.
    Raise UserError if ``count`` is not below the number of vectors or is above their dimension, if
    all vectors are equal, or if a vector is not finite."""
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
    # relative to the vectors' length: the rounding of equal vectors' mean leaves a small variance
    if variances.sum() <= 1e-14 * (rows**2).sum():
        raise UserError(f"the {n} vectors are all equal: they have no principal components.")
    # a singular vector may have either sign, which differs between libraries
    components = directions[:count]
    largest = np.take_along_axis(components, np.abs(components).argmax(1)[:, None], axis=1)
    return Projection(
        mean=mean,
        components=components * np.where(largest < 0, -1.0, 1.0),
        variance_shares=variances[:count] / variances.sum(),
    )
