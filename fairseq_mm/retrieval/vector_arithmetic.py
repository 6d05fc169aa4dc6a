"""Arithmetic with vectors of images and words (Kiros et al. 2014, section 3.2, equations 12 to 15).

With a linear encoder of sentences an image of a blue car, less the word "blue", plus the word
"red", is near images of red cars. With other encoders this is "not well observed" (section 3.2).
"""

from collections.abc import Collection
from typing import Any, NamedTuple, Optional

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.exact_products import check_same_dimension
from fairseq_mm.retrieval.vector_index import VectorIndex, unit_vectors

# cosines of 1 within float32's rounding cancel to less
_NOTHING = 1e-5


class Retrieved(NamedTuple):
    """
    Attributes:
        id: of the image.
        score: cosine to the query after arithmetic.
        distance_to_mean: Euclidean, to the mean of the N nearest; None where they are not sorted
            by it.
        rank: by the score, from 1.
    """

    id: str
    score: float
    distance_to_mean: Optional[float]
    rank: int


def shifted_vector(
    query: Any, minus: Optional[Any] = None, plus: Optional[Any] = None
) -> np.ndarray:
    """The query of equation 15: ``q - sum of w_n + sum of w_p``, all of unit length, renormalised.

    Args:
        query: ``[K]`` of an image, or of anything else in the space.
        minus: ``[n, K]`` of negative words; none when None or empty.
        plus: ``[p, K]`` of positive words, likewise.

    Returns:
        shifted: ``[K]`` float32 of unit length.

    Raises:
        UserError: if dimensions differ, a vector is zero or not finite, or all cancel out.
    """
    unit_query = unit_vectors(query[None], "query")
    total = unit_query[0].astype(np.float64)
    for vectors, what, sign in ((minus, "negative word", -1), (plus, "positive word", 1)):
        if vectors is not None and len(vectors):
            words = unit_vectors(vectors, what)
            check_same_dimension(unit_query, "query", words, what)
            total += sign * words.astype(np.float64).sum(0)
    length = np.linalg.norm(total)
    if length < _NOTHING:
        raise UserError("the query and its words cancel out: nothing is left to search for.")
    return (total / length).astype(np.float32)


def distances_to_mean(vectors: np.ndarray) -> np.ndarray:
    """``[N]`` float64 Euclidean distances of ``[N, K]`` vectors to their mean."""
    wide = vectors.astype(np.float64)
    return np.linalg.norm(wide - wide.mean(0), axis=1)


def retrieve_shifted(
    index: VectorIndex,
    query: Any,
    *,
    minus: Optional[Any] = None,
    plus: Optional[Any] = None,
    top: int = 4,
    resort: int = 0,
    exclude: Collection[str] = (),
) -> list[Retrieved]:
    """Images nearest to a query after arithmetic, the odd ones out put last.

    "Occasionally [...] a poor result would be obtained within the top-4 among good results": so the
    N nearest images are found first, and sorted by their distance to the mean of the N.

    Args:
        index: of images.
        query: ``[K]``, see :func:`shifted_vector`.
        minus: ``[n, K]`` likewise.
        plus: ``[p, K]`` likewise.
        top: images to return.
        resort: N; fewer than ``top`` for no sorting: the order is that of similarity.
        exclude: ids that must not be found, such as the query's.

    Raises:
        UserError: as :func:`shifted_vector`, or if the index has another dimension.
    """
    shifted = shifted_vector(query, minus, plus)
    found = index.search(shifted[None], max(top, resort), exclude=[exclude])[0]
    if not found:
        return []
    ranks = range(1, len(found) + 1)
    if resort < top:
        return [Retrieved(*item, None, rank) for item, rank in zip(found, ranks)]
    distances = distances_to_mean(index.vectors_of([item.id for item in found]))
    return [
        Retrieved(*found[i], float(distances[i]), ranks[i])
        for i in np.argsort(distances, kind="stable")[:top].tolist()
    ]
