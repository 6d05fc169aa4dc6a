"""Ranks images and sentences by the inner products of their vectors, in blocks of pairs.

Images are ranked for each sentence and sentences for each image, in one pass (Kiros et al. 2014,
tables 1 and 2). The score of a pair is the inner product of its float32 vectors. Where rounding
could change a rank, float64 products are compared (see :mod:`fairseq_mm.retrieval.exact_products`),
so that ranks are the same on every machine. Ties count as errors: a wrong candidate with the score
of the true candidate is ranked before the true candidate.
"""

from typing import Any, NamedTuple

import numpy as np

from fairseq_mm.retrieval.exact_products import (
    bounds_around,
    exact_products,
    float32_rows,
    norm_bounds,
    rounding_error,
)

# A product of up to 1,024 images and 8,192 sentences is computed at once, since BLAS is slower for
# smaller ones. Its scores are compared 64 images at a time: these stay in a processor's cache.
_PRODUCT_ROWS, _PRODUCT_COLUMNS = 1024, 8192
_COMPARED_ROWS = 64


class VectorRanks(NamedTuple):
    """Ranks, from 1, of the true candidates in both directions of retrieval.

    Attributes:
        image_ranks: ``[sentences]`` rank, among all images, of the image that a sentence describes.
        sentence_ranks: ``[images]`` rank, among all sentences, of the best-ranked sentence that
            describes an image.
    """

    image_ranks: np.ndarray
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
