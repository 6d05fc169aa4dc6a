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
from fairseq_mm.metrics.ranks import RankSummary, TrueRanks, summarize_ranks
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
# Vectors of so many pairs are copied at once; the copies stay in a processor's cache.
_PAIRS = 128


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

    def summary(self) -> "RetrievalSummary":
        I, N = len(self.sentence_ranks), len(self.image_ranks)  # noqa: E741
        return RetrievalSummary(
            image_retrieval=summarize_ranks(
                TrueRanks(np.arange(N), self.image_ranks, np.full(N, I))
            ),
            sentence_retrieval=summarize_ranks(
                TrueRanks(np.arange(I), self.sentence_ranks, np.full(I, N))
            ),
        )


@dataclass(frozen=True)
class RetrievalSummary:
    """Summaries of both directions of retrieval.

    Args:
        image_retrieval: Summary of the search for the image of each sentence.
        sentence_retrieval: Summary of the search for the sentences of each image.
    """

    image_retrieval: RankSummary
    sentence_retrieval: RankSummary

    @property
    def rsum(self) -> float:
        """Sum of R@K in percent over both directions and all K (at most 600 for K = 1, 5, 10)."""
        both = (self.image_retrieval, self.sentence_retrieval)
        return sum(value for summary in both for value in summary.recall_at.values())


def rank_vectors(images: Any, sentences: Any, image_of_sentence: Sequence[int]) -> VectorRanks:
    """Rank images for each sentence and sentences for each image.

    An image can be described by any number of sentences.

    Raise UserError if the dimensions differ, a vector is not finite, an image has no sentence, or a
    sentence names an image that does not exist.

    Args:
        images: ``[I, K]`` vectors of I images, array or tensor of any floating-point type.
        sentences: ``[N, K]`` vectors of N sentences, array or tensor of any floating-point type.
        image_of_sentence: ``[N]`` row in ``images`` of the image that each sentence describes.
    """
    images, sentences = float32_rows(images, "image"), float32_rows(sentences, "sentence")
    K = images.shape[1]
    check_same_dimension(K, "image", sentences.shape[1], "sentence")
    true_image = np.asarray(image_of_sentence)  # [N]
    _check_images_of_sentences(true_image, len(images), len(sentences))
    image_norms, sentence_norms = norm_bounds(images), norm_bounds(sentences)
    true_scores = _TrueScores(images, sentences, true_image)
    # Twice, since the score of the true pair is rounded as well.
    best_low, best_high = bounds_around(
        true_scores.best, 2 * rounding_error(image_norms, sentence_norms.max(), K)
    )
    low, high = bounds_around(
        true_scores.rounded, 2 * rounding_error(sentence_norms, image_norms.max(), K)
    )

    # A rank is one more than the number of wrong candidates that reach the true one's score. Scores
    # above the high bound are counted; between the bounds the exact products decide.
    sentence_ranks = np.ones(len(images), dtype=np.int64)
    image_ranks = np.ones(len(sentences), dtype=np.int64)
    for rows, columns, scores in _score_blocks(images, sentences):
        true_row = true_image[columns] - rows.start
        true_columns = np.flatnonzero((true_row >= 0) & (true_row < len(scores)))
        # true pairs are not their own competitors
        scores[true_row[true_columns], true_columns] = -np.inf

        is_above, is_near = scores > best_high[rows, None], scores >= best_low[rows, None]
        # a block has at most 8,192 columns, which fit into 16 bits
        num_above, num_near = (x.sum(1, dtype=np.uint16) for x in (is_above, is_near))
        sentence_ranks[rows] += num_above
        if not np.array_equal(num_above, num_near):
            i, j = _find_true(is_above != is_near, rows, columns)
            reaches = true_scores.multiply(i, j) >= true_scores.best_of(i)
            np.add.at(sentence_ranks, i[reaches], 1)

        is_above, is_near = scores > high[columns], scores >= low[columns]
        # added as bytes, without a conversion to wider integers: a block has at most 64 rows
        num_above, num_near = (x.view(np.uint8).sum(0, dtype=np.uint8) for x in (is_above, is_near))
        image_ranks[columns] += num_above
        if not np.array_equal(num_above, num_near):
            i, j = _find_true(is_above != is_near, rows, columns)
            reaches = true_scores.multiply(i, j) >= true_scores.of(j)
            np.add.at(image_ranks, j[reaches], 1)
    return VectorRanks(image_ranks=image_ranks, sentence_ranks=sentence_ranks)


class _TrueScores:
    """Scores of the sentences with the images that they describe.

    They are computed in float32 at first, and in float64 only for the sentences for which
    :meth:`of` or :meth:`best_of` is called.

    Args:
        images: ``[I, K]`` float32 vectors.
        sentences: ``[N, K]`` float32 vectors.
        true_image: ``[N]`` row in ``images`` of the image that each sentence describes.

    Attributes:
        rounded: ``[N]`` float32 score of each sentence with its image.
        best: ``[I]`` highest of the rounded scores of an image.
        multiply: Function that computes scores of pairs in float64, see :class:`ExactProducts`.
    """

    def __init__(self, images: np.ndarray, sentences: np.ndarray, true_image: np.ndarray) -> None:
        self.true_image = true_image
        self.multiply = ExactProducts(images, sentences)
        self.rounded = np.empty(len(sentences), dtype=np.float32)
        for start in range(0, len(sentences), _PAIRS):
            part = slice(start, start + _PAIRS)
            pairs = images[true_image[part]], sentences[part]
            self.rounded[part] = np.einsum("nk,nk->n", *pairs)
        self.best = np.full(len(images), -np.inf, dtype=np.float32)
        # with .at, since an image has several sentences: best[true_image] = ... would keep the
        # last one
        np.maximum.at(self.best, true_image, self.rounded)
        self._exact = np.full(len(sentences), np.nan)
        self._exact_best = np.full(len(images), np.nan)

    def of(self, sentences: np.ndarray) -> np.ndarray:
        """Return the float64 score of each sentence with the image that it describes, ``[n]``.

        ``sentences`` has the indices of n sentences.
        """
        unknown = np.unique(sentences[np.isnan(self._exact[sentences])])
        self._exact[unknown] = self.multiply(self.true_image[unknown], unknown)
        return self._exact[sentences]

    def best_of(self, images: np.ndarray) -> np.ndarray:
        """Return the highest float64 score of each of n images with one of its sentences, ``[n]``.

        ``images`` has the indices of the images.
        """
        unknown = images[np.isnan(self._exact_best[images])]
        if len(unknown):
            is_wanted = np.zeros(len(self.best), dtype=bool)
            is_wanted[unknown] = True
            sentences = np.flatnonzero(is_wanted[self.true_image])
            self._exact_best[unknown] = -np.inf
            np.maximum.at(self._exact_best, self.true_image[sentences], self.of(sentences))
        return self._exact_best[images]


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


def _find_true(values: np.ndarray, rows: slice, columns: slice) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of images and of sentences of the pairs for which ``values`` is True.

    ``values`` [images, sentences] is a bool block; the slices ``rows`` and ``columns`` select its
    images and sentences.
    """
    # faster than np.nonzero in two dimensions
    i, j = np.divmod(np.flatnonzero(values), values.shape[1])
    return i + rows.start, j + columns.start


def rank_folds(
    images: Any,
    sentences: Any,
    image_of_sentence: Sequence[int],
    *,
    folds: int,
    image_names: Optional[Sequence[str]] = None,
) -> list[VectorRanks]:
    """Rank within each of several equal parts of the images, as in COCO's 5 x 1k protocol.

    Return the ranks of each part. A part consists of consecutive images and their sentences. Raise
    UserError if the number of images is not a multiple of ``folds``, or for the same reasons as
    :func:`rank_vectors`.

    Args:
        images: See :func:`rank_vectors`.
        sentences: See :func:`rank_vectors`.
        image_of_sentence: See :func:`rank_vectors`.
        folds: Number of parts.
        image_names: Name of each image, for messages; None to name images by number.
    """
    images = float32_rows(images, "image", names=image_names)
    sentences, true_image = float32_rows(sentences, "sentence"), np.asarray(image_of_sentence)
    _check_images_of_sentences(true_image, len(images), len(sentences), image_names)
    if folds < 1 or len(images) % folds:
        raise UserError(f"{len(images)} images cannot be parted into {folds} equal folds.")
    size = len(images) // folds
    ranks = []
    for start in range(0, len(images), size):
        members = np.flatnonzero((true_image >= start) & (true_image < start + size))
        part = images[start : start + size]
        ranks.append(rank_vectors(part, sentences[members], true_image[members] - start))
    return ranks


def mean_summary(summaries: Sequence[RetrievalSummary]) -> RetrievalSummary:
    """Average the scores of folds, including the median rank; add the numbers of queries."""
    return RetrievalSummary(
        image_retrieval=_mean([summary.image_retrieval for summary in summaries]),
        sentence_retrieval=_mean([summary.sentence_retrieval for summary in summaries]),
    )


def _mean(summaries: list[RankSummary]) -> RankSummary:
    count = len(summaries)
    return RankSummary(
        recall_at={
            k: sum(summary.recall_at[k] for summary in summaries) / count
            for k in summaries[0].recall_at
        },
        median_rank=sum(summary.median_rank for summary in summaries) / count,
        mean_rank=sum(summary.mean_rank for summary in summaries) / count,
        queries=sum(summary.queries for summary in summaries),
        candidates=sum(summary.candidates for summary in summaries) / count,
    )


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
