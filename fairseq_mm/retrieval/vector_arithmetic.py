"""Arithmetic with vectors of images and words (Kiros et al. 2014, section 3.2, equations 12 to 15).

With a linear sentence encoder, an image of a blue car minus the word "blue" plus the word "red" is
near images of red cars. With other encoders this is "not well observed" (section 3.2).
"""

from collections.abc import Collection
from typing import Any, NamedTuple, Optional

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.exact_products import check_same_dimension
from fairseq_mm.retrieval.nearest_vectors import VectorStore, unit_vectors

# vectors that cancel out leave a shorter rest, by the rounding of float32
_NOTHING = 1e-5


class Retrieved(NamedTuple):
    """Key of an item, its cosine to the query after arithmetic, and its rank by it, from 1.

    ``distance_to_mean`` is the Euclidean distance to the mean of the N nearest items; None if the
    items are not sorted by it.
    """

    id: str
    score: float
    distance_to_mean: Optional[float]
    rank: int


def shifted_vector(
    query: Any, minus: Optional[Any] = None, plus: Optional[Any] = None
) -> np.ndarray:
    """Return the query of equation 15, ``q - sum(w_n) + sum(w_p)`` of unit vectors, as unit vector.

    ``query`` is the vector ``[K]`` of an image, or of anything else in the space, ``minus`` and
    ``plus`` are vectors ``[n, K]`` of words. The result is float32. Raise UserError if dimensions
    differ, a vector is zero or not finite, or the vectors cancel out.
    """
    unit_query = unit_vectors(query[None], "query")
    total = unit_query[0].astype(np.float64)
    for vectors, what, sign in ((minus, "negative word", -1), (plus, "positive word", 1)):
        if vectors is not None and len(vectors):
            words = unit_vectors(vectors, what)
            check_same_dimension(unit_query.shape[1], "query", words.shape[1], what)
            total += sign * words.astype(np.float64).sum(0)
    length = np.linalg.norm(total)
    if length < _NOTHING:
        raise UserError("the query and its words cancel out: nothing is left to search for.")
    return (total / length).astype(np.float32)


def distances_to_mean(vectors: np.ndarray) -> np.ndarray:
    """Return the Euclidean distances ``[N]`` (float64) of ``[N, K]`` vectors to their mean."""
    # float32 differences of nearly equal vectors would have few digits left
    wide = vectors.astype(np.float64)
    return np.linalg.norm(wide - wide.mean(0), axis=1)


def retrieve_shifted(
    store: VectorStore,
    query: Any,
    *,
    minus: Optional[Any] = None,
    plus: Optional[Any] = None,
    top: int = 4,
    resort: int = 0,
    exclude: Collection[str] = (),
) -> list[Retrieved]:
    """Return the ``top`` items nearest to a query after arithmetic, with outliers last.

    "Occasionally [...] a poor result would be obtained within the top-4 among good results": the N
    nearest items are therefore sorted by their distance to their mean. N is ``resort``; if it is
    below ``top``, items are sorted by similarity. For the vectors see :func:`shifted_vector`. Items
    in ``exclude``, such as the query's own, are not returned. Raise UserError if
    :func:`shifted_vector` refuses the vectors or the store has another dimension.
    """
    shifted = shifted_vector(query, minus, plus)
    (items,) = store.search(shifted[None], max(top, resort), exclude=exclude)
    # sorting fewer items than are returned would leave the rest without a place
    if resort < top:
        return [Retrieved(*item, None, rank) for rank, item in enumerate(items, 1)]
    if not items:
        return []
    distances = distances_to_mean(store.read([item.id for item in items]))
    return [
        Retrieved(*items[i], float(distances[i]), i + 1)
        for i in np.argsort(distances, kind="stable")[:top].tolist()
    ]
