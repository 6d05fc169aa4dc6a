"""Computes inner products of float32 vectors so that ranks and ties are equal on every machine.

A float32 matrix product sums in an order that depends on block sizes, on the processor and on the
position of a vector, so that equal vectors may get scores that differ in the last digits. To rank
candidates, scores are compared with a threshold, such as the score of the true candidate. If a
float32 score differs from the threshold by less than the rounding error, the score is computed
again in float64, always in the same order of summation. Equal vectors then have equal scores.
"""

from typing import Any

import numpy as np

from fairseq_mm.errors import UserError

_LARGEST = 1e18  # norm of a vector: products of two stay far below float32's largest number
_PIECE = 1 << 16  # float64 values of a piece of pairs: they stay in a cache of 2 MB


def float32_rows(vectors: Any, what: str) -> np.ndarray:
    """Return vectors ``[n, K]``, an array or tensor of any type, as a contiguous float32 array.

    Raise UserError if a vector is not finite or has a norm above 1e18, because all ranks would
    be wrong. ``what`` is the noun for a vector, such as ``image``, in the message.
    """
    # a tensor goes through float(), since numpy has no bfloat16
    if hasattr(vectors, "detach"):
        vectors = vectors.detach().float().cpu().numpy()
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    # not `norms > _LARGEST`, which is False for NaN
    is_bad = ~(norm_bounds(rows) <= _LARGEST)
    if is_bad.any():
        raise UserError(f"{what} vector {int(is_bad.argmax())} has NaN, infinite or huge values.")
    return rows


def norm_bounds(rows: np.ndarray) -> np.ndarray:
    """Return upper bounds ``[n]`` of the Euclidean norms of ``[n, K]`` float32 vectors."""
    # the factor covers the rounding of the sum, the summand squares below 1e-38, lost in float32
    return 1.001 * np.sqrt(np.einsum("nk,nk->n", rows, rows)).astype(np.float64) + 1e-17


def rounding_error(norms: np.ndarray, largest: float, dim: int) -> np.ndarray:
    """Return upper bounds of the rounding error of inner products that are computed in float32.

    Each of n vectors is multiplied with all vectors of a second set. Element i of the result
    ``[n]`` is a bound for all products of vector i, in any order of summation.

    Args:
        norms: ``[n]`` upper bounds of the norms of the n vectors, see :func:`norm_bounds`.
        largest: Largest norm of a vector in the second set.
        dim: Dimension of the vectors.
    """
    # K products and K - 1 sums round by at most 2**-24 each, relative to the product of the norms;
    # products near 0 lose up to the smallest normal number
    relative = 1.01 * (dim + 2) * 2.0**-24
    return relative * norms * largest + dim * float(np.finfo(np.float32).tiny)


def bounds_around(thresholds: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a lower and an upper float32 bound of each threshold, ``[n]`` each.

    If a float32 product is below the lower bound, the exact product is below the threshold; if it
    is above the upper bound, the exact product is above the threshold. Between the bounds, the
    exact product must be computed.

    Args:
        thresholds: ``[n]`` float64 values with which exact products are to be compared.
        error: ``[n]`` upper bounds of the float32 products' errors, see :func:`rounding_error`.
    """
    # one float further, since the conversion to float32 may round towards the threshold
    low = np.nextafter((thresholds - error).astype(np.float32), np.float32(-np.inf))
    high = np.nextafter((thresholds + error).astype(np.float32), np.float32(np.inf))
    return low, high


def exact_products(
    first: np.ndarray, second: np.ndarray, i: np.ndarray, j: np.ndarray
) -> np.ndarray:
    """Return the float64 products [P] of row ``i[p]`` of ``first`` and row ``j[p]`` of ``second``.

    ``first`` [n, K] and ``second`` [m, K] are float32 matrices.
    """
    if len(i) > 8 * (len(first) + len(second)):
        # a collapsed model gives equal vectors by the thousand: equal pairs are computed once
        i, j = _first_equal(first)[i], _first_equal(second)[j]
        pairs, place = np.unique(i * len(second) + j, return_inverse=True)
        if 8 * len(pairs) < len(place):
            return exact_products(first, second, *np.divmod(pairs, len(second)))[place]
    products = np.empty(len(i))
    step = max(1, _PIECE // first.shape[1])
    for start in range(0, len(i), step):
        piece = first[i[start : start + step]].astype(np.float64)
        piece *= second[j[start : start + step]]
        # not @ or einsum, whose order of summation depends on library and processor
        products[start : start + step] = piece.sum(1)
    return products


def _first_equal(rows: np.ndarray) -> np.ndarray:
    """Return the place of the first row that equals each row, ``[n]``."""
    places: dict[bytes, int] = {}
    return np.array([places.setdefault(row.tobytes(), i) for i, row in enumerate(rows)])
