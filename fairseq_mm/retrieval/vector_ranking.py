"""Ranks of images and sentences by the inner products of their vectors (Kiros et al. 2014, table 1
and 2): both directions in one pass of tiles, so that no matrix of all pairs ever exists.

The score of a pair is the inner product of the two float32 vectors, exact to float64: see
:mod:`fairseq_mm.retrieval.exact_products`. Ties count against the system: a wrong candidate that
scores as much as the true one stands before it. So ranks are the same on every machine.
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

# Largest tile of scores: it stays in a cache of 2 MB. Truth values are added up eight at a time as
# bytes of 64-bit words, so neither rows nor 64-bit words of a row may be more than 255.
_ROWS = 240
_COLUMNS = 8 * 255
# Tiles that are multiplied at once, one below the other: taller products cost less a score.
_TILES = 4


@dataclass(frozen=True)
class VectorRanks:
    """
    Args:
        image_ranks: ``[N]`` place of its image in the list of all images, for each sentence.
        sentence_ranks: ``[I]`` place of the best of its sentences in the list of all sentences, for
            each image.
    """

    image_ranks: np.ndarray
    sentence_ranks: np.ndarray

    def summary(self) -> "RetrievalSummary":
        """What is reported."""
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
    """
    Args:
        image_retrieval: images for a sentence ("image search").
        sentence_retrieval: sentences for an image ("image annotation").
    """

    image_retrieval: RankSummary
    sentence_retrieval: RankSummary

    @property
    def rsum(self) -> float:
        """Sum of R@K over K and both directions, at most 600 for three K."""
        both = (self.image_retrieval, self.sentence_retrieval)
        return sum(value for summary in both for value in summary.recall_at.values())


def rank_vectors(
    images: Any,
    sentences: Any,
    image_of_sentence: Sequence[int],
    *,
    image_names: Optional[Sequence[str]] = None,
) -> VectorRanks:
    """Ranks in both directions, with any number of sentences an image.

    Args:
        images: ``[I, K]`` array or tensor of any floating-point type.
        sentences: ``[N, K]`` likewise.
        image_of_sentence: ``[N]`` row of its image.
        image_names: of each image, for messages.

    Raises:
        UserError: if the dimensions differ, a vector is not finite, an image has no sentence, or a
            sentence an image that is not there.
    """
    images = float32_rows(images, "image", names=image_names)
    sentences = float32_rows(sentences, "sentence")
    check_same_dimension(images, "image", sentences, "sentence")
    image_of = np.asarray(image_of_sentence)
    _check_belonging(image_of, len(images), len(sentences), image_names)
    exact = ExactProducts(images, sentences)
    truth = exact(image_of, np.arange(len(sentences)))  # [N]
    best = np.full(len(images), -np.inf)
    np.maximum.at(best, image_of, truth)

    K = images.shape[1]
    image_norms, sentence_norms = norm_bounds(images), norm_bounds(sentences)
    row_low, row_high = bounds_around(best, rounding_error(image_norms, sentence_norms.max(), K))
    low, high = bounds_around(truth, rounding_error(sentence_norms, image_norms.max(), K))
    # wrong candidates that reach the true one's score
    before_sentence = np.zeros(len(images), dtype=np.int64)
    before_image = np.zeros(len(sentences), dtype=np.int64)
    R = _tile_size(len(images), _ROWS)
    C = 8 * _tile_size(-(-len(sentences) // 8), _COLUMNS // 8)
    reaches = np.empty((2, R, C), dtype=bool)  # perhaps, certainly
    for rows, columns, scores in _tiles(images, sentences, (R, C)):
        owner = image_of[columns] - rows.start
        own = np.flatnonzero((owner >= 0) & (owner < R))
        scores[owner[own], own] = -np.inf  # true ones do not push each other back

        of_rows = (_padded(row_low[rows], R)[:, None], _padded(row_high[rows], R)[:, None])
        i, j = _near(scores, *of_rows, reaches)
        before_sentence[rows] += _count_rows(reaches[1])[: rows.stop - rows.start]
        hit = exact(i + rows.start, j + columns.start) >= best[i + rows.start]
        before_sentence[rows] += np.bincount(i[hit], minlength=rows.stop - rows.start)

        i, j = _near(scores, _padded(low[columns], C), _padded(high[columns], C), reaches)
        before_image[columns] += _count_columns(reaches[1])[: columns.stop - columns.start]
        hit = exact(i + rows.start, j + columns.start) >= truth[j + columns.start]
        before_image[columns] += np.bincount(j[hit], minlength=columns.stop - columns.start)
    return VectorRanks(image_ranks=before_image + 1, sentence_ranks=before_sentence + 1)


def rank_folds(
    images: Any,
    sentences: Any,
    image_of_sentence: Sequence[int],
    *,
    folds: int,
    image_names: Optional[Sequence[str]] = None,
) -> list[VectorRanks]:
    """Ranks within each of several equal parts of the images, as in the 5 x 1k of COCO.

    Args:
        images: see :func:`rank_vectors`.
        sentences: likewise.
        image_of_sentence: likewise.
        folds: number of parts; each has the images that follow one another, and their sentences.
        image_names: likewise.

    Raises:
        UserError: if the images cannot be parted equally, and as :func:`rank_vectors`.
    """
    images = float32_rows(images, "image", names=image_names)
    sentences, image_of = float32_rows(sentences, "sentence"), np.asarray(image_of_sentence)
    _check_belonging(image_of, len(images), len(sentences), image_names)
    if folds < 1 or len(images) % folds:
        raise UserError(f"{len(images)} images cannot be parted into {folds} equal folds.")
    size = len(images) // folds
    found = []
    for start in range(0, len(images), size):
        members = np.flatnonzero((image_of >= start) & (image_of < start + size))
        part = images[start : start + size]
        found.append(rank_vectors(part, sentences[members], image_of[members] - start))
    return found


def mean_summary(summaries: Sequence[RetrievalSummary]) -> RetrievalSummary:
    """Mean of every figure over folds; the median rank, too, is a mean then."""
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


def _check_belonging(
    image_of: np.ndarray, num_images: int, num_sentences: int, names: Optional[Sequence[str]]
) -> None:
    if image_of.shape != (num_sentences,) or image_of.dtype.kind not in "iu":
        raise UserError(
            f"`image_of_sentence` must be the number of an image for each of the {num_sentences} "
            f"sentences, but is {list(image_of.shape)} of {image_of.dtype}."
        )
    is_outside = (image_of < 0) | (image_of >= num_images)
    if is_outside.any():
        n = int(is_outside.argmax())
        raise UserError(
            f"sentence {n} belongs to image {image_of[n]}, but there are {num_images} images."
        )
    has_none = np.bincount(image_of, minlength=num_images) == 0
    if has_none.any():
        i = int(has_none.argmax())
        named = f"image {i}" + ("" if names is None else f" ({names[i]})")
        raise UserError(
            f"{named} has no sentence ({int(has_none.sum())} of {num_images} images have none): "
            "its sentences cannot be ranked."
        )


def _tile_size(total: int, most: int) -> int:
    """Size of equal parts, none larger than ``most``."""
    parts = -(-total // most)
    return -(-total // parts)


def _tiles(
    first: np.ndarray, second: np.ndarray, shape: tuple[int, int]
) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Rows, columns and scores ``[R, C]`` of the tiles of ``first @ second.T``, each once.

    Scores beyond the rows and the columns are ``-inf``. The next tile may overwrite them.
    """
    R, C = shape
    height = R * min(_TILES, -(-len(first) // R))
    block = np.empty((height, C), dtype=np.float32)
    for top in range(0, len(first), height):
        part = first[top : top + height]
        for left in range(0, len(second), C):
            columns = slice(left, min(left + C, len(second)))
            _multiply(part, second[columns], block)
            for i in range(0, len(part), R):
                rows = slice(top + i, min(top + i + R, len(first)))
                yield rows, columns, block[i : i + R]


def _padded(bounds: np.ndarray, size: int) -> np.ndarray:
    """``[size]``, with what nothing reaches at the end."""
    padded = np.full(size, np.inf, dtype=np.float32)
    padded[: len(bounds)] = bounds
    return padded


def _multiply(first: np.ndarray, second: np.ndarray, scores: np.ndarray) -> None:
    """Fills a block; a smaller product is followed by ``-inf`` in both directions."""
    shape = len(first), len(second)
    if shape == scores.shape:
        np.matmul(first, second.T, out=scores)
        return
    scores.fill(-np.inf)
    scores[: shape[0], : shape[1]] = first @ second.T


def _near(
    scores: np.ndarray, low: np.ndarray, high: np.ndarray, reaches: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the scores that rounding leaves open.

    ``reaches[1]`` is left with those that are certainly above.
    """
    perhaps, certainly = reaches
    np.greater_equal(scores, low, out=perhaps)
    np.greater(scores, high, out=certainly)
    np.not_equal(perhaps, certainly, out=perhaps)
    words = np.flatnonzero(perhaps.view(np.uint64))
    which, place = np.nonzero(perhaps.reshape(-1, 8)[words])
    row, word = np.divmod(words[which], scores.shape[1] // 8)
    return row, 8 * word + place


def _count_rows(truth: np.ndarray) -> np.ndarray:
    """``[R]`` number of True in each row of ``[R, C]``."""
    words = np.add.reduce(truth.view(np.uint64), axis=1)
    return words.view(np.uint8).reshape(-1, 8).sum(1, dtype=np.int64)


def _count_columns(truth: np.ndarray) -> np.ndarray:
    """``[C]`` number of True in each column of ``[R, C]``."""
    return np.add.reduce(truth.view(np.uint8), axis=0, dtype=np.uint8).astype(np.int64)
