"""Ranks images and sentences by the inner products of their vectors, in blocks of pairs.

Images are ranked for each sentence and sentences for each image, in one pass (Kiros et al. 2014,
tables 1 and 2). Ties count as errors: a wrong candidate with the score of the true candidate is
ranked before the true candidate.

A float32 matrix product sums in an order that depends on block sizes, on the processor and on the
position of a vector, so that equal vectors may get scores that differ in the last digits. If a
float32 score differs from a threshold, such as the score of the true candidate, by less than the
rounding error, the score is therefore computed again in float64, always in the same order of
summation. Equal vectors then have equal scores, and ranks are the same on every machine.
"""

from typing import Any, NamedTuple

import numpy as np

from fairseq_mm.errors import UserError

_LARGEST = 1e18  # norm of a vector: products of two stay far below float32's largest number
_PIECE = 1 << 16  # float64 values of a piece of pairs: they stay in a cache of 2 MB
# A product of up to 1,024 images and 8,192 sentences is computed at once, since BLAS is slower for
# smaller ones. Its scores are compared 64 images at a time: these stay in a processor's cache.
_PRODUCT_ROWS, _PRODUCT_COLUMNS = 1024, 8192
_COMPARED_ROWS = 64


def float32_rows(vectors: Any, what: str) -> np.ndarray:
    """Return vectors ``[n, K]``, an array or tensor, as contiguous float32. Raise UserError if one
    is not finite or has a norm above 1e18: ranks would be wrong. ``what`` is the noun for a
    vector."""
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
    """Return, for each row, the index of the first equal row, ``[n]``."""
    places: dict[bytes, int] = {}
    return np.array([places.setdefault(row.tobytes(), i) for i, row in enumerate(rows)])


class VectorRanks(NamedTuple):
    """Ranks, from 1, of the true candidates in both directions of retrieval."""

    # ``[sentences]`` rank, among all images, of the image that a sentence describes
    image_ranks: np.ndarray
    # ``[images]`` rank, among all sentences, of the best-ranked sentence that describes an image
    sentence_ranks: np.ndarray


def rank_vectors(images: Any, sentences: Any, image_of_sentence: Any) -> VectorRanks:
    """Rank images for each sentence and sentences for each image.

    Args:
        images: ``[I, K]`` vectors of I images, array or tensor of any floating-point type.
        sentences: ``[N, K]`` vectors of N sentences.
        image_of_sentence: ``[N]`` row in ``images`` of the image that each sentence describes;
            every image has a sentence.
    """
    images, sentences = float32_rows(images, "image"), float32_rows(sentences, "sentence")
    true_image = np.asarray(image_of_sentence)  # [N]
    K = images.shape[1]
    image_norms, sentence_norms = norm_bounds(images), norm_bounds(sentences)
    # exact, because bounds around rounded scores would be twice as far apart
    true_scores = exact_products(images, sentences, true_image, np.arange(len(sentences)))
    best_scores = np.full(len(images), -np.inf)
    # with .at, since an image has several sentences: best_scores[true_image] = ... would keep the
    # last one
    np.maximum.at(best_scores, true_image, true_scores)
    best_bounds = bounds_around(best_scores, rounding_error(image_norms, sentence_norms.max(), K))
    true_bounds = bounds_around(true_scores, rounding_error(sentence_norms, image_norms.max(), K))

    # A rank is one more than the number of wrong candidates that reach the true one's score. Scores
    # above the high bound are counted; between the bounds the exact products decide.
    sentence_ranks = np.ones(len(images), dtype=np.int64)
    image_ranks = np.ones(len(sentences), dtype=np.int64)
    for top in range(0, len(images), _PRODUCT_ROWS):
        for left in range(0, len(sentences), _PRODUCT_COLUMNS):
            columns = slice(left, left + _PRODUCT_COLUMNS)
            product = images[top : top + _PRODUCT_ROWS] @ sentences[columns].T
            for start in range(0, len(product), _COMPARED_ROWS):
                scores = product[start : start + _COMPARED_ROWS]  # [rows, columns]
                rows = slice(top + start, top + start + len(scores))
                block = images[rows], sentences[columns]
                # true pairs are not their own competitors
                true_row = true_image[columns] - rows.start
                own = np.flatnonzero((true_row >= 0) & (true_row < len(scores)))
                scores[true_row[own], own] = -np.inf

                num_above, i, j = _compare(scores, *(x[rows, None] for x in best_bounds))
                sentence_ranks[rows] += num_above
                reaches = exact_products(*block, i, j) >= best_scores[rows][i]
                np.add.at(sentence_ranks[rows], i[reaches], 1)

                num_above, i, j = _compare(scores, *(x[None, columns] for x in true_bounds))
                image_ranks[columns] += num_above
                reaches = exact_products(*block, i, j) >= true_scores[columns][j]
                np.add.at(image_ranks[columns], j[reaches], 1)
    return VectorRanks(image_ranks, sentence_ranks)


def _compare(
    scores: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compare a block of scores with a lower and an upper bound for each row or each column.

    Args:
        scores: ``[rows, columns]`` scores.
        low: Lower bounds, ``[rows, 1]`` or ``[1, columns]``.
        high: Upper bounds, of the same shape.

    Returns:
        The number of scores above the upper bound for each row or column, and the rows and the
        columns of the scores between the bounds.
    """
    axis = 1 if low.shape[1] == 1 else 0
    reaches = scores >= low
    # flatnonzero is faster than np.nonzero in two dimensions
    if np.count_nonzero(reaches) < scores.size // 64:
        # faster than to compare all scores with the upper bound
        pairs = np.divmod(np.flatnonzero(reaches), scores.shape[1])
        is_above = scores[pairs] > np.ravel(high)[pairs[1 - axis]]
        num_above = np.bincount(pairs[1 - axis][is_above], minlength=low.size)
        return num_above, pairs[0][~is_above], pairs[1][~is_above]
    is_above = scores > high
    is_between = np.flatnonzero(reaches ^ is_above)
    return np.count_nonzero(is_above, axis=axis), *np.divmod(is_between, scores.shape[1])
