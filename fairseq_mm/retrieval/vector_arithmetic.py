"""Adds vectors of images and words for retrieval (Kiros et al. 2014, section 3.2, equations 12-15).

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
    """Item of a store that :func:`retrieve_shifted` has found for a query.

    Attributes:
        id: Key of the item in the store.
        score: Cosine between the item's vector and the vector ``query - minus + plus``.
        distance_to_mean: Euclidean distance to the mean of the nearest items; None if the items are
            not sorted by this distance.
        rank: Rank of the item by ``score``, from 1.
    """

    id: str
    score: float
    distance_to_mean: Optional[float]
    rank: int


def shifted_vector(
    query: Any, minus: Optional[Any] = None, plus: Optional[Any] = None
) -> np.ndarray:
    """Compute ``query - minus + plus`` for vectors of words (Kiros et al. 2014, equation 15).

    All vectors are scaled to length 1 first, and so is the result, ``[K]`` float32. Raise UserError
    if dimensions differ, a vector is zero or not finite, or the vectors cancel out.

    Args:
        query: ``[K]`` vector of an image, or of any other item in the same space.
        minus: ``[n, K]`` vectors of words to subtract; None for no words.
        plus: ``[n, K]`` vectors of words to add; None for no words.
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
    """Return the items of a store that are nearest to the vector ``query - minus + plus``.

    Kiros et al. 2014, section 3.2: "Occasionally [...] a poor result would be obtained within the
    top-4 among good results". With ``resort``, the nearest items are therefore sorted by their
    distance to their mean, so that outliers come last. Raise UserError if a vector is zero or not
    finite, the vectors cancel out, or the store has another dimension.

    Args:
        store: Store to search.
        query: ``[K]`` vector of an image, or of any other item in the same space.
        minus: ``[n, K]`` vectors of words to subtract; None for no words.
        plus: ``[n, K]`` vectors of words to add; None for no words.
        top: Number of items to return.
        resort: Number of nearest items to sort by the distance to their mean; the first ``top``
            items are returned. If it is below ``top``, the ``top`` nearest items are returned,
            sorted by cosine.
        exclude: Keys of items that are not returned, such as an item that is the query itself.
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
