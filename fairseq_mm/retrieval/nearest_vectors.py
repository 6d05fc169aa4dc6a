"""Searches exactly for the vectors nearest to a query, in memory, and projects vectors to a plane.

Float32 vectors of length 1 are compared by their inner products. Products so close that rounding
could change the order are computed in float64, see :mod:`.vector_ranking`.
Equally near vectors keep their order.
"""

from collections.abc import Collection
from typing import Any, NamedTuple, Optional

import numpy as np

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.vector_ranking import (
    bounds_around,
    exact_products,
    float32_rows,
    norm_bounds,
    rounding_error,
)

_PIECE = 8192  # candidates that are multiplied at once
_QUERIES = 256  # queries that are multiplied at once


def unit_vectors(vectors: Any, what: str) -> np.ndarray:
    """Scale vectors ``[n, K]``, an array or tensor, to length 1, float32. Raise UserError if one is
    zero or not finite; ``what`` is the noun for a vector, such as ``image``."""
    rows = float32_rows(vectors, what)
    units = np.empty_like(rows)
    for start in range(0, len(rows), _PIECE):
        piece = rows[start : start + _PIECE]
        # in float64, since squares of small float32 values would be lost
        norms = np.linalg.norm(piece.astype(np.float64), axis=1, keepdims=True)
        if not norms.all():
            number = start + int(norms.argmin())
            raise UserError(f"{what} vector {number} is zero: it has no direction.")
        units[start : start + _PIECE] = piece / norms
    return units


def nearest(queries: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k candidates whose inner products with each query are largest, largest first.

    Args:
        queries: ``[Q, K]`` float32 vectors.
        candidates: ``[n, K]`` float32 vectors; n is k or more.
        k: Number of candidates to return.

    Returns:
        Places ``[Q, k]`` in ``candidates`` and products ``[Q, k]``, computed in float64. Equal
        products keep the order of ``candidates``.
    """
    places = np.empty((len(queries), k), dtype=np.int64)
    products = np.empty((len(queries), k))
    for start in range(0, len(queries), _QUERIES):
        block = slice(start, start + _QUERIES)
        places[block], products[block] = _search_block(queries[block], candidates, k)
    return places, products


def _search_block(
    queries: np.ndarray, candidates: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    Q, K = queries.shape
    norms = norm_bounds(queries)
    floor = np.full(Q, -np.inf)  # the kth best product is at least so large
    pairs = []  # query, place and product of the pairs that may be among the best
    for start in range(0, len(candidates), _PIECE):
        piece = candidates[start : start + _PIECE]
        scores = queries @ piece.T  # [Q, piece]
        error = rounding_error(norms, norm_bounds(piece).max(), K)
        if len(piece) >= k:
            floor = np.maximum(floor, np.partition(scores, -k, axis=1)[:, -k] - error)
        # products that rounding may have put below the floor stay: their exact values decide
        low, _ = bounds_around(floor, error)
        query, place = np.nonzero(scores >= low[:, None])
        pairs.append((query, start + place, exact_products(queries, piece, query, place)))
    query, place, product = (np.concatenate(parts) for parts in zip(*pairs))
    # by place last, so that equally near vectors keep their order
    order = np.lexsort((place, -product, query))
    firsts = np.searchsorted(query[order], np.arange(Q))
    best = order[firsts[:, None] + np.arange(k)]
    return place[best], product[best]


class VectorStore:
    """Vectors of a feature store in memory, one per image or sentence.

    Args:
        store: Opened feature store, as ``fairseq-mm embed`` and ``fairseq-mm index`` write it.

    Attributes:
        ids: Key of each item.
        vectors: ``[items, K]`` float32 vectors of length 1.
    """

    def __init__(self, store: FeatureStore) -> None:
        self.ids = store.ids
        rows = store.read_all()
        # a store of image regions has the same format, and its rows would be searched as vectors
        if not len(rows) or len(rows) != len(self.ids):
            raise UserError(
                f"{store.path}: must have one vector an item, but has {len(rows)} vectors of "
                f"{len(self.ids)} items."
            )
        self.vectors = unit_vectors(rows, f"{store.path}:")
        self._place_by_id = {key: place for place, key in enumerate(self.ids)}

    def __getitem__(self, ids: list[str]) -> np.ndarray:
        """Return the vectors with the keys ``ids``, ``[ids, K]``."""
        return self.vectors[[self._place_by_id[key] for key in ids]]

    def search(
        self, queries: np.ndarray, k: int, *, exclude: Collection[str] = ()
    ) -> list[list[tuple[str, float]]]:
        """Return keys and cosines (-1 to 1) of the k items nearest to each query, nearest first.

        Args:
            queries: ``[queries, K]`` vectors of any length above 0.
            k: Number of items to return for each query; all are returned if there are fewer.
            exclude: Keys of items that are not returned, such as an item that is the query itself.
        """
        number = min(k + len(exclude), len(self.ids))
        places, cosines = nearest(unit_vectors(queries, "query"), self.vectors, number)
        results = []
        for row, scores in zip(places.tolist(), cosines.tolist()):
            items = [(self.ids[place], score) for place, score in zip(row, scores)]
            results.append([item for item in items if item[0] not in exclude][:k])
        return results


class Retrieved(NamedTuple):
    """Item of a store that :func:`retrieve_shifted` has found for a query."""

    id: str  # key of the item in the store
    score: float  # cosine between the item's vector and the vector ``query - minus + plus``
    # euclidean distance to the mean of the nearest items; None if the items are not sorted by this
    # distance
    distance_to_mean: Optional[float]
    rank: int  # rank of the item by ``score``, from 1


def shifted_vector(
    query: Any, minus: Optional[Any] = None, plus: Optional[Any] = None
) -> np.ndarray:
    """Compute ``query - minus + plus`` for vectors of words (Kiros et al. 2014, equation 15).

    All vectors are scaled to length 1 first, and so is the result, ``[K]`` float32.

    Args:
        query: ``[K]`` vector of an image, or of any other item in the same space.
        minus: ``[n, K]`` vectors of words to subtract; None for no words.
        plus: ``[n, K]`` vectors of words to add; None for no words.
    """
    total = unit_vectors(query[None], "query")[0].astype(np.float64)
    for words, sign in ((minus, -1), (plus, 1)):
        if words is not None and len(words):
            total += sign * unit_vectors(words, "word").astype(np.float64).sum(0)
    length = np.linalg.norm(total)
    # vectors that cancel out leave a shorter rest, by the rounding of float32
    if length < 1e-5:
        raise UserError("the query and its words cancel out: nothing is left to search for.")
    return (total / length).astype(np.float32)


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
    distance to their mean, so that outliers come last.

    Args:
        store: Store to search.
        query, minus, plus: See :func:`shifted_vector`.
        top: Number of items to return.
        resort: Number of nearest items to sort by the distance to their mean; the first ``top``
            items are returned. If it is below ``top``, the ``top`` nearest items are returned,
            sorted by cosine.
        exclude: Keys of items that are not returned, such as an item that is the query itself.
    """
    shifted = shifted_vector(query, minus, plus)
    (items,) = store.search(shifted[None], max(top, resort), exclude=exclude)
    # sorting fewer items than are returned would leave the rest without a place
    if resort < top or not items:
        return [Retrieved(*item, None, rank) for rank, item in enumerate(items, 1)]
    # float32 differences of nearly equal vectors would have few digits left
    wide = store[[key for key, _ in items]].astype(np.float64)
    distances = np.linalg.norm(wide - wide.mean(0), axis=1)
    return [
        Retrieved(*items[int(i)], float(distances[i]), int(i) + 1)
        for i in np.argsort(distances, kind="stable")[:top]
    ]


class Projection(NamedTuple):
    """Vectors projected to their first C principal components."""

    coordinates: np.ndarray  # [n, C] coordinates of the vectors along the components
    # [C, K] orthonormal directions in the order of decreasing variance. The sign of a direction is
    # chosen so that its element with the largest absolute value is positive.
    components: np.ndarray
    # [C] fraction, from 0 to 1, of the total variance in each direction
    variance_shares: np.ndarray


def principal_components(vectors: Any, count: int = 2) -> Projection:
    """Compute the first ``count`` principal components of vectors ``[n, K]``, n above ``count``."""
    rows = float32_rows(vectors, "projected").astype(np.float64)
    centred = rows - rows.mean(0)
    _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    variances = lengths**2
    # a singular vector may have either sign, which differs between libraries
    components = directions[:count]
    largest = np.take_along_axis(components, np.abs(components).argmax(1)[:, None], axis=1)
    components = components * np.where(largest < 0, -1.0, 1.0)
    shares = variances[:count] / variances.sum()
    return Projection(centred @ components.T, components, shares)
