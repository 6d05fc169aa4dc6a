"""Principal components of vectors of words and images (Kiros et al. 2014, supplement, figure 5)."""

from typing import Any, NamedTuple

import numpy as np

from fairseq_mm.retrieval.exact_products import float32_rows


class Projection(NamedTuple):
    """Vectors on their first C principal components.

    Attributes:
        coordinates: [n, C] coordinates of the vectors along the components.
        components: [C, K] orthonormal directions in the order of decreasing variance. The sign of a
            direction is chosen so that its element with the largest absolute value is positive.
        variance_shares: [C] fraction, from 0 to 1, of the total variance in each direction.
    """

    coordinates: np.ndarray
    components: np.ndarray
    variance_shares: np.ndarray


def principal_components(vectors: Any, count: int = 2) -> Projection:
    """Compute the first ``count`` principal components of vectors ``[n, K]``, n above ``count``."""
    rows = float32_rows(vectors, "projected").astype(np.float64)
    centred = rows - rows.mean(0)
    _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    variances = lengths**2
    # a singular vector may have either sign, which differs between libraries
    components = directions[:count]
    largest = np.take_along_axis(components, np.abs(components).argmax(1)[:, None], axis=1)
    components = components * np.where(largest < 0, -1.0, 1.0)
    shares = variances[:count] / variances.sum()
    return Projection(centred @ components.T, components, shares)
