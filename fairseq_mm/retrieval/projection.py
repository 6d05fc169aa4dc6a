"""Principal components of vectors of words and images (Kiros et al. 2014, supplement, figure 5)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.exact_products import check_same_dimension, float32_rows


@dataclass(frozen=True)
class Projection:
    """Function that projects vectors of dimension K onto C principal components.

    Args:
        mean: [K] mean of the vectors from which the components were computed.
        components: [C, K] orthonormal directions in the order of decreasing variance. The sign of a
            direction is chosen so that its element with the largest absolute value is positive.
        variance_shares: [C] fraction, from 0 to 1, of the total variance in each direction.
    """

    mean: np.ndarray
    components: np.ndarray
    variance_shares: np.ndarray

    def __call__(self, vectors: Any) -> np.ndarray:
        """Return the coordinates ``[n, C]`` of vectors ``[n, K]`` along the components.

        Raise UserError if the vectors have another dimension than K or are not finite.
        """
        rows = float32_rows(vectors, "projected")
        check_same_dimension(
            rows.shape[1], "projected", self.components.shape[1], "the projection's"
        )
        return (rows.astype(np.float64) - self.mean) @ self.components.T


def principal_components(vectors: Any, count: int = 2) -> Projection:
    """Compute the first ``count`` principal components of vectors ``[n, K]``.

    Raise UserError if ``count`` is n or more or is above K, if all vectors are equal, or if a
    vector is not finite.
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
