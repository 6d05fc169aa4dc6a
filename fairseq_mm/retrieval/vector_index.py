"""An index of vectors on disk: the nearest of a feature store's items, by cosine, found exactly.

A folder holds ``vectors.npy`` ``[n, K]`` float32 of unit length, which is mapped and not read
whole, and ``index.json``: the ids, and which store it was made of. While it is made the folder is
``<folder>.partial``, and a run that was killed continues there.

Nearness is the inner product of the float32 vectors, exact to float64 (see
:mod:`fairseq_mm.retrieval.exact_products`); of items that are equally near the earlier one in the
store comes first.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_file import size_and_time
from fairseq_mm.data.folder_lock import locked_folder
from fairseq_mm.data.input_files import parse_json
from fairseq_mm.data.numpy_files import load_numpy, new_mapped_array
from fairseq_mm.data.output_file import output_file
from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.exact_products import (
    ExactProducts,
    bounds_around,
    check_same_dimension,
    float32_rows,
    norm_bounds,
    rounding_error,
)

FORMAT_VERSION = 1
_PIECE = 8192  # items that are read, or multiplied, at once
_QUERIES = 256  # at once


class Found(NamedTuple):
    """An item of the index.

    Attributes:
        id: its key in the store.
        similarity: cosine, -1 to 1.
    """

    id: str
    similarity: float


def unit_vectors(vectors: Any, what: str, *, names: Optional[Sequence[str]] = None) -> np.ndarray:
    """Vectors brought to length 1.

    Args:
        vectors: ``[n, K]`` array or tensor of any floating-point type.
        what: what one of them is, for messages.
        names: of each vector, for messages.

    Returns:
        unit: ``[n, K]`` float32.

    Raises:
        UserError: if one is zero, or as :func:`~fairseq_mm.retrieval.exact_products.float32_rows`.
    """
    rows = float32_rows(vectors, what, names=names)
    norms = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    if not norms.all():
        i = int(norms[:, 0].argmin())
        named = f"{what} vector {i}" + ("" if names is None else f" ({names[i]})")
        raise UserError(f"{named} is zero: it has no direction.")
    return (rows / norms).astype(np.float32)


def nearest(queries: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k candidates with the largest inner products, in blocks of both.

    Args:
        queries: ``[Q, K]`` float32.
        candidates: ``[n, K]`` float32, may be mapped from disk.
        k: how many; at most n.

    Returns:
        places: ``[Q, k]`` rows of ``candidates``, best first, the earlier first of equal ones.
        products: ``[Q, k]`` float64.
    """
    places = np.empty((len(queries), k), dtype=np.int64)
    products = np.empty((len(queries), k))
    for start in range(0, len(queries), _QUERIES):
        block = slice(start, start + _QUERIES)
        places[block], products[block] = _nearest_of_block(queries[block], candidates, k)
    return places, products


def _nearest_of_block(
    queries: np.ndarray, candidates: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    Q, K = queries.shape
    norms = norm_bounds(queries)
    places = np.zeros((Q, 0), dtype=np.int64)
    products = np.zeros((Q, 0))
    for start in range(0, len(candidates), _PIECE):
        piece = np.asarray(candidates[start : start + _PIECE])
        scores = queries @ piece.T  # [Q, piece]
        largest = norm_bounds(piece).max()
        if not np.isfinite(largest):
            raise UserError(f"vectors {start} to {start + len(piece) - 1} have NaN or infinity.")
        error = rounding_error(norms, largest, K)
        if products.shape[1] == k:
            floor = products[:, -1]
        else:  # what the kth of these certainly reaches
            place = max(len(piece) - k, 0)
            floor = np.partition(scores, place, axis=1)[:, place] - error
        low, _ = bounds_around(floor, error)
        q, c = np.nonzero(scores >= low[:, None])
        found = ExactProducts(queries, piece)(q, c)
        places, products = _merged(places, products, (q, start + c, found), k)
    return places, products


def _merged(
    places: np.ndarray,
    products: np.ndarray,
    more: tuple[np.ndarray, np.ndarray, np.ndarray],
    k: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The k best of those that were found before and of more (query, place, product)."""
    Q, before = places.shape
    query = np.concatenate([np.arange(Q).repeat(before), more[0]])
    place = np.concatenate([places.reshape(-1), more[1]])
    product = np.concatenate([products.reshape(-1), more[2]])
    order = np.lexsort((place, -product, query))
    starts = np.searchsorted(query[order], np.arange(Q))
    # every query has found as many as there are so far, up to k
    count = min(k, int(np.diff(np.append(starts, len(order))).min()))
    chosen = order[starts[:, None] + np.arange(count)]
    return place[chosen], product[chosen]


class VectorIndex:
    """A finished index, opened for queries.

    Args:
        folder: see :func:`build_index`.
        store: the store that it must have been made of; not checked when None.

    Attributes:
        ids: of the items, in the order of the store.
        dim: K.
        vectors: ``[n, K]`` float32 of unit length, mapped from disk.

    Raises:
        UserError: if it is missing, damaged, or made of another store.
    """

    def __init__(
        self, folder: Union[str, os.PathLike], store: Optional[FeatureStore] = None
    ) -> None:
        self.folder = Path(folder)
        record = _read_record(self.folder)
        self.ids: list[str] = record["ids"]
        self.dim: int = record["dim"]
        self._place_of = {key: place for place, key in enumerate(self.ids)}
        path = self.folder / "vectors.npy"
        if not path.exists():
            raise UserError(f"{path}: is missing; delete {self.folder} to build the index anew.")
        vectors = load_numpy(path)
        if not isinstance(vectors, np.ndarray):
            raise UserError(
                f"{path}: must be one array, but is an archive of arrays; delete {self.folder} to "
                "build the index anew."
            )
        if vectors.shape != (len(self.ids), self.dim) or vectors.dtype != np.float32:
            raise UserError(
                f"{path}: must be float32 {[len(self.ids), self.dim]}, but is {vectors.dtype} "
                f"{list(vectors.shape)}; delete {self.folder} to build the index anew."
            )
        self.vectors: np.ndarray = vectors
        if store is not None and not _is_of(record, store):
            raise UserError(
                f"{self.folder}: is an index of other vectors than {store.path} has now; delete "
                "that folder to build it anew, or give another one."
            )

    def __len__(self) -> int:
        return len(self.ids)

    def search(
        self, queries: Any, k: int, *, exclude: Optional[Sequence[Collection[str]]] = None
    ) -> list[list[Found]]:
        """The k nearest items of each query, best first.

        Args:
            queries: ``[Q, K]`` array or tensor; brought to length 1.
            k: how many; all that there are when there are fewer.
            exclude: ids that each query must not find, such as its own.

        Raises:
            UserError: if the queries have another dimension, or one is zero or not finite.
        """
        rows = unit_vectors(queries, "query")
        check_same_dimension(rows, "query", self.vectors, f"{self.folder}:")
        left_out = [set(ids) for ids in exclude] if exclude is not None else [set()] * len(rows)
        wanted = k + max(len(ids) for ids in left_out)
        try:
            places, products = nearest(rows, self.vectors, min(wanted, len(self)))
        except UserError as error:
            raise UserError(
                f"{self.folder}: {error} Delete that folder to build the index anew."
            ) from None
        found = []
        for ids, row, cosines in zip(left_out, places.tolist(), products.tolist()):
            items = (Found(self.ids[i], cosine) for i, cosine in zip(row, cosines))
            found.append([item for item in items if item.id not in ids][:k])
        return found

    def vectors_of(self, ids: Sequence[str]) -> np.ndarray:
        """``[len(ids), K]`` vectors of these items.

        Raises:
            UserError: if one of them is not in the index.
        """
        unknown = [key for key in ids if key not in self._place_of]
        if unknown:
            raise UserError(f"{self.folder}: has no vector of {unknown[0]!r}.")
        return np.asarray(self.vectors[[self._place_of[key] for key in ids]])


def build_index(
    store: FeatureStore,
    folder: Union[str, os.PathLike],
    *,
    on_items: Callable[[int], object] = lambda count: None,
) -> VectorIndex:
    """The index of a store: opened where it stands, else made and then opened.

    An index whose store has changed since is made anew. A run that was killed is continued.

    Args:
        store: of vectors, one row an item.
        folder: to make.
        on_items: is told the number of items of each step, those of an earlier run included.

    Raises:
        UserError: if an item has several rows, a vector is zero, the store is empty, the folder
            cannot be written or another process writes it.
    """
    folder = Path(folder)
    if (folder / "index.json").exists():
        if _is_of(_read_record(folder), store):
            return VectorIndex(folder)
    elif folder.exists() and not _is_empty(folder):
        raise UserError(f"{folder}: stands there already, and is no index.")
    _check_rows(store)
    partial = folder.with_name(folder.name + ".partial")
    try:
        with locked_folder(str(partial)):
            _fill(store, partial, on_items)
            _move_into_place(partial, folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror or error}).") from None
    return VectorIndex(folder)


def _fill(store: FeatureStore, partial: Path, on_items: Callable[[int], object]) -> None:
    record = {
        "format_version": FORMAT_VERSION,
        "dim": store.dim,
        "store": fingerprint(store),
        "store_size_and_time": list(size_and_time(store.path)),
        "ids": store.ids,
    }
    done, vectors = _continued(partial, record)
    on_items(done)
    for start in range(done, len(store), _PIECE):
        ids = store.ids[start : start + _PIECE]
        rows = np.concatenate([store.read(key) for key in ids])
        vectors[start : start + len(ids)] = unit_vectors(rows, f"{store.path}:", names=ids)
        vectors.flush()
        with output_file(partial / "done") as file:
            file.write(str(start + len(ids)))
        on_items(len(ids))


def _continued(partial: Path, record: dict[str, Any]) -> tuple[int, np.memmap]:
    """Number of vectors that stand in the partial folder, and the file that they stand in."""
    shape = (len(record["ids"]), record["dim"])
    path = partial / "vectors.npy"
    with contextlib.suppress(OSError, ValueError, KeyError):
        begun = parse_json((partial / "index.json").read_text(encoding="utf-8"))
        if begun["store"] == record["store"]:
            vectors = np.lib.format.open_memmap(str(path), mode="r+")
            done = int((partial / "done").read_text())
            if vectors.shape == shape and 0 <= done <= len(vectors):
                return done, vectors
    for name in ("done", "index.json"):
        (partial / name).unlink(missing_ok=True)
    vectors = new_mapped_array(path, shape, np.float32)
    with output_file(partial / "index.json") as file:
        json.dump(record, file)
    return 0, vectors


def _move_into_place(partial: Path, folder: Path) -> None:
    # an index of what the store held before: its record goes last, so that a run that was killed
    # here finds an index that is to be made anew, or an empty folder
    if folder.exists():
        for name in ("vectors.npy", "index.json"):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder)
    (partial / "done").unlink()
    (partial / "lock").unlink(missing_ok=True)
    os.rename(partial, folder)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def fingerprint(store: FeatureStore) -> str:
    """First sixteen digits of the SHA-256 of a store's ids and rows, wherever it lies."""
    digest = hashlib.sha256(json.dumps([store.ids, store.dim, store.dtype.str]).encode())
    for key in store.ids:
        digest.update(store.read(key).tobytes())
    return digest.hexdigest()[:16]


def _is_of(record: dict[str, Any], store: FeatureStore) -> bool:
    # a file that nobody has touched since needs no reading
    if record.get("store_size_and_time") == list(size_and_time(store.path)):
        return record["ids"] == store.ids and record["dim"] == store.dim
    return record.get("store") == fingerprint(store)


def _check_rows(store: FeatureStore) -> None:
    if not len(store):
        raise UserError(f"{store.path}: must have vectors, but has no items.")
    for key in store.ids:
        if store.rows_of(key) != 1:
            raise UserError(
                f"{store.path}: must have one row an item, but {key!r} has {store.rows_of(key)}: "
                "an index is made of vectors of an embedding model."
            )


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / "index.json"
    try:
        record = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder}: is no index of vectors ({path.name} is missing).") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}).") from None
    is_record = isinstance(record, dict) and record.get("format_version") == FORMAT_VERSION
    if not is_record or not isinstance(record.get("ids"), list) or "dim" not in record:
        raise UserError(
            f"{path}: must be the record of an index of format {FORMAT_VERSION}, but is not; "
            f"delete {folder} to build it anew."
        )
    return record
