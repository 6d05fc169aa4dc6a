"""Ranks images and sentences by the inner products of their vectors, in blocks of pairs.

Images are ranked for each sentence and sentences for each image, in one pass (Kiros et al. 2014,
tables 1 and 2). The score of a pair is the inner product of its float32 vectors. Where rounding
could change a rank, float64 products are compared (see :mod:`fairseq_mm.retrieval.exact_products`),
so that ranks are the same on every machine. Ties count as errors: a wrong candidate with the score
of the true candidate is ranked before the true candidate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.exact_products import (
    ExactProducts,
    bounds_around,
    check_same_dimension,
    float32_rows,
    norm_bounds,
    rounding_error,
)

# A product of up to 1,024 images and 8,192 sentences is computed at once, since BLAS is slower for
# smaller ones. Its scores are compared 64 images at a time: these stay in a processor's cache.
# The number of these images whose score exceeds a bound is summed in uint8: at most 255.
_PRODUCT_ROWS, _PRODUCT_COLUMNS = 1024, 8192
_COMPARED_ROWS = 64
# If at most one of so many scores reaches its lower bound, these scores are compared with the upper
# bounds one by one, which is faster than to compare all scores.
_FEW = 64


@dataclass(frozen=True)
class VectorRanks:
    """Ranks, from 1, of the true candidates in both directions of retrieval.

    Args:
        image_ranks: ``[sentences]`` rank, among all images, of the image that a sentence describes.
        sentence_ranks: ``[images]`` rank, among all sentences, of the best-ranked sentence that
            describes an image.
    """

    image_ranks: np.ndarray
    sentence_ranks: np.ndarray


def rank_vectors(
    images: Any,
    sentences: Any,
    image_of_sentence: Sequence[int],
    *,
    image_names: Optional[Sequence[str]] = None,
) -> VectorRanks:
    """Rank images for each sentence and sentences for each image.

    An image can be described by any number of sentences.

    Raise UserError if the dimensions differ, a vector is not finite, an image has no sentence, or a
    sentence names an image that does not exist.

    Args:
        images: ``[I, K]`` vectors of I images, array or tensor of any floating-point type.
        sentences: ``[N, K]`` vectors of N sentences, array or tensor of any floating-point type.
        image_of_sentence: ``[N]`` row in ``images`` of the image that each sentence describes.
        image_names: Name of each image, for messages; None to name images by number.
    """
    images = float32_rows(images, "image", names=image_names)
    sentences = float32_rows(sentences, "sentence")
    K = images.shape[1]
    check_same_dimension(K, "image", sentences.shape[1], "sentence")
    true_image = np.asarray(image_of_sentence)  # [N]
    _check_images_of_sentences(true_image, len(images), len(sentences), image_names)
    image_norms, sentence_norms = norm_bounds(images), norm_bounds(sentences)
    multiply = ExactProducts(images, sentences)
    # exact, because bounds around rounded scores would be twice as far apart
    true_scores = multiply.multiply_pairs(true_image, np.arange(len(sentences)))
    best_scores = np.full(len(images), -np.inf)
    # with .at, since an image has several sentences: best_scores[true_image] = ... would keep the
    # last one
    np.maximum.at(best_scores, true_image, true_scores)
    best_low, best_high = bounds_around(
        best_scores, rounding_error(image_norms, sentence_norms.max(), K)
    )
    low, high = bounds_around(true_scores, rounding_error(sentence_norms, image_norms.max(), K))

    # A rank is one more than the number of wrong candidates that reach the true one's score. Scores
    # above the high bound are counted; between the bounds the exact products decide.
    sentence_ranks = np.ones(len(images), dtype=np.int64)
    image_ranks = np.ones(len(sentences), dtype=np.int64)
    for rows, columns, scores in _score_blocks(images, sentences):
        true_row = true_image[columns] - rows.start
        true_columns = np.flatnonzero((true_row >= 0) & (true_row < len(scores)))
        # true pairs are not their own competitors
        scores[true_row[true_columns], true_columns] = -np.inf

        num_above, i, j = _compare(scores, best_low[rows, None], best_high[rows, None])
        sentence_ranks[rows] += num_above
        i, j = i + rows.start, j + columns.start
        np.add.at(sentence_ranks, i[multiply(i, j) >= best_scores[i]], 1)

        num_above, i, j = _compare(scores, low[None, columns], high[None, columns])
        image_ranks[columns] += num_above
        i, j = i + rows.start, j + columns.start
        np.add.at(image_ranks, j[multiply(i, j) >= true_scores[j]], 1)
    return VectorRanks(image_ranks=image_ranks, sentence_ranks=sentence_ranks)


def _score_blocks(
    images: np.ndarray, sentences: np.ndarray
) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Yield (rows, columns, scores) of the blocks of ``images @ sentences.T`` in float32.

    The slices ``rows`` and ``columns`` select the images and sentences of the block.
    """
    for top in range(0, len(images), _PRODUCT_ROWS):
        for left in range(0, len(sentences), _PRODUCT_COLUMNS):
            columns = slice(left, left + _PRODUCT_COLUMNS)
            product = images[top : top + _PRODUCT_ROWS] @ sentences[columns].T
            for start in range(0, len(product), _COMPARED_ROWS):
                scores = product[start : start + _COMPARED_ROWS]
                yield slice(top + start, top + start + len(scores)), columns, scores


def _compare(
    scores: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compare a block of scores with a lower and an upper bound for each image or each sentence.

    Args:
        scores: ``[images, sentences]`` scores; at most 64 images and 8,192 sentences.
        low: Lower bounds, ``[images, 1]`` or ``[1, sentences]``.
        high: Upper bounds, of the same shape.

    Returns:
        The number of scores above the upper bound for each image or sentence, and the rows and the
        columns of the scores between the bounds.
    """
    axis = 1 if low.shape[1] == 1 else 0  # the axis along which scores are counted
    reaches_low = scores >= low
    num_reaching = np.count_nonzero(reaches_low)
    if num_reaching * _FEW <= scores.size:
        pairs = _find_true(reaches_low)
        is_above = scores[pairs] > np.broadcast_to(high, scores.shape)[pairs]
        num_above = np.bincount(pairs[1 - axis][is_above], minlength=low.size)
        return num_above, pairs[0][~is_above], pairs[1][~is_above]
    is_above = scores > high
    # in few bits, since a conversion of bytes to wider integers takes longer
    dtype = np.uint16 if axis == 1 else np.uint8
    num_above = is_above.view(np.uint8).sum(axis, dtype=dtype)
    # changed in place, since it is not needed any more
    return num_above, *_find_true(np.not_equal(reaches_low, is_above, out=reaches_low))


def _find_true(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and the columns of the elements of a matrix that are True."""
    # faster than np.nonzero in two dimensions
    return np.divmod(np.flatnonzero(values), values.shape[1])


def _check_images_of_sentences(
    true_image: np.ndarray,
    num_images: int,
    num_sentences: int,
    names: Optional[Sequence[str]] = None,
) -> None:
    if true_image.shape != (num_sentences,) or true_image.dtype.kind not in "iu":
        raise UserError(
            f"`image_of_sentence` must be the number of an image for each of the {num_sentences} "
            f"sentences, but is {list(true_image.shape)} of {true_image.dtype}."
        )
    is_unknown = (true_image < 0) | (true_image >= num_images)
    if is_unknown.any():
        n = int(is_unknown.argmax())
        raise UserError(
            f"sentence {n} belongs to image {true_image[n]}, but there are {num_images} images."
        )
    has_none = np.bincount(true_image, minlength=num_images) == 0
    if has_none.any():
        i = int(has_none.argmax())
        named = f"image {i}" + ("" if names is None else f" ({names[i]})")
        raise UserError(
            f"{named} has no sentence ({int(has_none.sum())} of {num_images} images have none): "
            "its sentences cannot be ranked."
        )
