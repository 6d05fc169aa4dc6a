"""Searches exactly for the vectors nearest to a query, in memory or in a feature store.

Float32 vectors of length 1 are compared by their inner products. Products so close that rounding
could change the order are computed in float64, see :mod:`fairseq_mm.retrieval.exact_products`.
Equally near vectors keep the order of the store.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.exact_products import (
    ExactProducts,
    bounds_around,
    check_same_dimension,
    float32_rows,
    name_vector,
    norm_bounds,
    rounding_error,
)

_PIECE = 8192  # candidates in memory at once
_QUERIES = 256  # queries that are multiplied at once


class NearVector(NamedTuple):
    """Item of a feature store, such as an image, that is near to a query.

    Attributes:
        id: Key of the item in the store.
        similarity: Cosine (-1 to 1) between the vectors of item and query.
    """

    id: str
    similarity: float


def unit_vectors(vectors: Any, what: str, *, names: Optional[Sequence[str]] = None) -> np.ndarray:
    """Return vectors ``[n, K]`` scaled to length 1, as float32.

    Raise UserError if ``vectors`` is empty or not a matrix, or a vector is zero, is not finite or
    has a norm above 1e18.

    Args:
        vectors: Array or tensor of any floating-point type, on any device.
        what: Noun for a vector, such as ``image``, for messages.
        names: Names of the vectors, for messages; None to name them by number.
    """
    rows = float32_rows(vectors, what, names=names)
    # in float64, since squares of small float32 values would be lost
    norms = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    if not norms.all():
        i = int(norms[:, 0].argmin())
        raise UserError(f"{name_vector(what, i, names)} is zero: it has no direction.")
    return (rows / norms).astype(np.float32)


class VectorStore:
    """Feature store with one vector per image or sentence, scaled to length 1 when read.

    Raises UserError if the store is empty or a key has more than one vector.

    Args:
        store: Opened feature store.
    """

    def __init__(self, store: FeatureStore) -> None:
        if not len(store):
            raise UserError(f"{store.path}: must have vectors, but has no items.")
        # a store of image regions has the same format, and its rows would be searched as vectors
        for key in store.ids:
            if store.count_rows(key) != 1:
                raise UserError(
                    f"{store.path}: must have one row an item, but {key!r} has "
                    f"{store.count_rows(key)}: vectors of an embedding model are searched."
                )
        self.store = store

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, items: slice) -> np.ndarray:
        return self.read(self.store.ids[items])

    def read(self, ids: Sequence[str]) -> np.ndarray:
        """Return the vectors with the keys ``ids``, scaled to length 1, ``[ids, K]``.

        Raise UserError if the store lacks a key, or if a vector is zero or not finite.
        """
        rows = np.concatenate([self.store.read(key) for key in ids])
        return unit_vectors(rows, f"{self.store.path}:", names=ids)

    def search(
        self, queries: Any, k: int, *, exclude: Collection[str] = ()
    ) -> list[list[NearVector]]:
        """Return the k nearest items of each query, nearest first; all items if there are fewer.

        Raise UserError if the queries have another dimension than the store, or a vector is zero or
        not finite.

        Args:
            queries: ``[queries, K]`` vectors of any length above 0.
            k: Number of items to return for each query.
            exclude: Keys of items that are not returned, such as an item that is the query itself.
        """
        rows = unit_vectors(queries, "query")
        check_same_dimension(rows.shape[1], "query", self.store.dim, f"{self.store.path}:")
        excluded = set(exclude)
        # more than k, since excluded items may be among the nearest and are removed only afterwards
        places, cosines = nearest(rows, self, min(k + len(excluded), len(self)))
        results = []
        for query_places, query_cosines in zip(places.tolist(), cosines.tolist()):
            items = map(NearVector, [self.store.ids[i] for i in query_places], query_cosines)
            results.append([item for item in items if item.id not in excluded][:k])
        return results


def nearest(
    queries: np.ndarray,
    candidates: Union[np.ndarray, VectorStore],
    k: int,
    *,
    longest: Optional[float] = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Find, for each of Q queries, the k candidates with the largest inner products.

    Args:
        queries: ``[Q, K]`` float32 vectors.
        candidates: ``[n, K]`` float32 vectors with n >= k, or a store, which is read in blocks.
        k: Number of candidates to return.
        longest: Upper bound of the norms of the candidates; None to compute it, which takes as long
            as the products of one query.

    Returns:
        Indices ``[Q, k]`` of the candidates, and the inner products ``[Q, k]`` in float64. The
        largest product comes first; equal products keep the order of the candidates.
    """
    places = np.empty((len(queries), k), dtype=np.int64)
    products = np.empty((len(queries), k))
    for start in range(0, len(queries), _QUERIES):
        block = slice(start, start + _QUERIES)
        places[block], products[block] = _search_block(queries[block], candidates, k, longest)
    return places, products


def _search_block(
    queries: np.ndarray,
    candidates: Union[np.ndarray, VectorStore],
    k: int,
    longest: Optional[float],
) -> tuple[np.ndarray, np.ndarray]:
    Q, K = queries.shape
    norms = norm_bounds(queries)
    floor = np.full(Q, -np.inf)  # the kth best product is at least so large
    pairs = []  # query, place and product of the pairs that may be among the best
    for start in range(0, len(candidates), _PIECE):
        piece = candidates[start : start + _PIECE]
        scores = queries @ piece.T  # [Q, piece]
        bound = norm_bounds(piece).max() if longest is None else longest
        error = rounding_error(norms, bound, K)
        if len(piece) >= k:
            floor = np.maximum(floor, np.partition(scores, -k, axis=1)[:, -k] - error)
        # products that rounding may have put below the floor stay: their exact values decide
        low, _ = bounds_around(floor, error)
        query, place = np.nonzero(scores >= low[:, None])
        pairs.append((query, start + place, ExactProducts(queries, piece)(query, place)))
    query, place, product = (np.concatenate(parts) for parts in zip(*pairs))
    # by place last, so that equally near vectors keep their order
    order = np.lexsort((place, -product, query))
    firsts = np.searchsorted(query[order], np.arange(Q))
    best = order[firsts[:, None] + np.arange(k)]
    return place[best], product[best]


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
