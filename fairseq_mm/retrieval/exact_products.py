"""Computes inner products of float32 vectors so that ranks and ties are equal on every machine.

A float32 matrix product sums in an order that depends on block sizes, on the processor and on the
position of a vector, so that equal vectors may get scores that differ in the last digits. To rank
candidates, scores are compared with a threshold, such as the score of the true candidate. If a
float32 score differs from the threshold by less than the rounding error, the score is computed
again in float64, always in the same order of summation. Equal vectors then have equal scores.
"""

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from fairseq_mm.errors import UserError

_LARGEST = 1e18  # norm of a vector: products of two stay far below float32's largest number
_PIECE = 1 << 16  # float64 values of a piece of pairs: they stay in a cache of 2 MB
_MANY = 50_000  # pairs: for so many, the search for equal vectors is worth its time


def float32_rows(vectors: Any, what: str, *, names: Optional[Sequence[str]] = None) -> np.ndarray:
    """Return vectors ``[n, K]`` as a contiguous float32 array.

    A contiguous float32 array is returned without a copy. Raise UserError if ``vectors`` is empty
    or not a matrix, or a vector is not finite or has a norm above 1e18.

    Args:
        vectors: Array or tensor of any floating-point type, on any device.
        what: Noun for a vector, such as ``image``, for messages.
        names: Names of the vectors, for messages; None to name them by number.
    """
    # a tensor goes through float(), since numpy has no bfloat16
    if hasattr(vectors, "detach"):
        vectors = vectors.detach().float().cpu().numpy()
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    if rows.ndim != 2 or 0 in rows.shape:
        raise UserError(
            f"{what} vectors must be [number, dimension], both above 0, but are {list(rows.shape)}."
        )
    norms = norm_bounds(rows)
    # not `norms > _LARGEST`, which is False for NaN
    is_bad = ~(norms <= _LARGEST)
    if is_bad.any():
        i = int(is_bad.argmax())
        size = "has NaN or infinite values" if not np.isfinite(rows[i]).all() else "is too large"
        named = name_vector(what, i, names)
        raise UserError(f"{named} {size}: vectors must be finite and shorter than 1e18.")
    return rows


def name_vector(what: str, i: int, names: Optional[Sequence[str]]) -> str:
    """Return a phrase for vector ``i``, such as ``image vector 3 (a.jpg)``, for messages.

    ``what`` is the noun for a vector; without ``names``, the phrase has no name in brackets.
    """
    return f"{what} vector {i}" + ("" if names is None else f" ({names[i]})")


def check_same_dimension(dim: int, what: str, other_dim: int, other: str) -> None:
    """Raise UserError if two kinds of vectors have different dimensions.

    ``what`` is the noun for the vectors of dimension ``dim``, ``other`` the noun for the vectors of
    dimension ``other_dim``.
    """
    if dim != other_dim:
        raise UserError(
            f"{what} vectors have dimension {dim}, but {other} vectors have {other_dim}: both must "
            "come from one model."
        )


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


class ExactProducts:
    """Function that computes inner products of rows of two matrices in float64.

    Args:
        first: ``[n, K]`` float32 matrix.
        second: ``[m, K]`` float32 matrix.
    """

    def __init__(self, first: np.ndarray, second: np.ndarray) -> None:
        self.first = first
        self.second = second
        self._distinct: Optional[tuple[np.ndarray, np.ndarray]] = None

    def __call__(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Return products [P] of row ``i[p]`` (first matrix) and row ``j[p]`` (second matrix)."""
        if len(i) < _MANY:
            return self.multiply_pairs(i, j)
        # a collapsed model gives equal vectors by the thousand: compute equal pairs once
        if self._distinct is None:
            self._distinct = (_find_first_equal(self.first), _find_first_equal(self.second))
        keys = self._distinct[0][i] * np.int64(len(self.second)) + self._distinct[1][j]
        distinct, place = np.unique(keys, return_inverse=True)
        return self.multiply_pairs(*np.divmod(distinct, len(self.second)))[place.reshape(-1)]

    def multiply_pairs(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Compute the same products without a search for equal vectors, for distinct pairs."""
        products = np.empty(len(i))
        step = max(1, _PIECE // self.first.shape[1])
        for start in range(0, len(i), step):
            piece = self.first[i[start : start + step]].astype(np.float64)
            piece *= self.second[j[start : start + step]]
            # not @ or einsum, whose order of summation depends on library and processor
            products[start : start + step] = piece.sum(1)
        return products


def _find_first_equal(rows: np.ndarray) -> np.ndarray:
    """Return, for each of n rows, the index of the first row with the same bytes, ``[n]``."""
    # each row as one opaque value: np.unique(axis=0) would compare number by number
    whole = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))[:, 0]
    _, first, place = np.unique(whole, return_index=True, return_inverse=True)
    return first[place.reshape(-1)]
