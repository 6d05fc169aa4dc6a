"""Reads feature stores: features of images and videos in one HDF5 file, read by key.

=============  ====================  =======================================================
member         shape                 content
=============  ====================  =======================================================
``features``   ``[total rows, D]``   float16 or float32: all items' rows, one after the other
``offsets``    ``[items + 1]``       int64: item i is rows ``offsets[i]:offsets[i + 1]``
``ids``        ``[items]``           UTF-8 strings: the keys
attributes                           how features were made (``EXTRACTOR_ATTRIBUTES``), and when
=============  ====================  =======================================================

An item (image or video) has at least one row: one for a pooled image, 49 for a 7x7 grid, one per
video frame. :class:`fairseq_mm.data.feature_store_writer.FeatureStoreWriter` writes the files.

The writer adds two checksums, see :mod:`fairseq_mm.data.feature_store_checksum`. If the rows are
contiguous and not compressed, as the writer stores them, the file is memory-mapped; other layouts
are read through h5py. All members must lie in the file itself: links, virtual datasets and datasets
in other files are refused. Nothing is ever unpickled.
"""

import difflib
import os
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Callable, Optional, Union

import h5py
import numpy as np

from fairseq_mm.data.feature_sources import Source, SourceTable, read_sources
from fairseq_mm.data.feature_store_checksum import EXTRACTOR_ATTRIBUTES, content_checksum
from fairseq_mm.data.feature_store_file import open_hdf5, read_layout, size_and_time
from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError

Progress = Callable[[Iterable[str]], Iterable[str]]

# attributes that describe the extractor further, and may differ between features that fit together:
# version of the network's library, and config of a network of transformers
EXTRACTOR_NOTES = ("library", "network_config")
# the stores of a data folder without features.h5: [{"store": path, "prefix": text}, ...]
STORE_LIST = "features.json"
# attributes of a part of a list: "2/3", and a digest of all ids of the list
SHARD_ATTRIBUTES = ("shard", "shard_of")
# rows are checked and copied in pieces, since a whole store may not fit into memory
PIECE_BYTES = 1 << 25
# difflib compares a missing key with each id, which takes too long for millions of ids
MAX_SEARCHED_FOR_HINT = 50_000


class FeatureStore:
    """Feature store opened for reading.

    The file is opened once per process: a store can be built before workers are forked, sent to
    spawned workers and pickled. Open files are never part of the pickle.

    If the writer checked that all features are finite (``rows_finite``), ``read`` does not check it
    again, since checking takes one to two times as long as reading. Otherwise every ``read`` checks
    its result, until ``check_finite`` has checked the whole store once.

    Args:
        path: Path of the HDF5 file.
        preload: Keep all features in memory (once per process; forked workers share them).
        prefix: Text that is put before each key, to distinguish stores with common keys.

    Attributes:
        path: Path of the file, as the caller wrote it.
        ids: The keys, in the order of the file.
        dim: Feature dimension.
        dtype: float16 or float32, the dtype of the features that ``read`` returns.
        attributes: Attributes of the file that say how and when the features were made.
        rows_finite: True if all features were checked, by the writer or by ``check_finite``.
        has_checksum: True if the metadata match the checksum in the file; False if the file has no
            checksum of its metadata.
        content_checksum: Checksum of ids, features and extractor from the time of writing; empty
            in stores of other programs.
        has_digest: True if this checksum covers the extractor; False in stores of earlier versions.
    """

    def __init__(
        self, path: Union[str, os.PathLike], *, preload: bool = False, prefix: str = ""
    ) -> None:
        self.path = os.fspath(path)
        self.preload = preload
        self._index: Optional[dict[str, int]] = None
        self._sources: Optional[SourceTable] = None
        self._drop_handles()
        layout = read_layout(self.path)
        self.ids = [prefix + key for key in layout.ids] if prefix else layout.ids
        self.dim = layout.dim
        self.dtype = layout.dtype
        self.attributes = layout.attributes
        self.rows_finite = layout.rows_finite
        self.has_checksum = layout.has_checksum
        self.content_checksum = layout.content_checksum
        self.has_digest = layout.has_digest
        self._offsets = layout.offsets
        self._num_rows = int(layout.offsets[-1])
        self._rows_offset = layout.rows_offset
        self._size_and_time = layout.size_and_time
        self._build_index()
        if preload:
            self._open_rows()

    @property
    def is_contiguous(self) -> bool:
        """True if features are read directly from their place in the file, without libhdf5."""
        return self._rows_offset is not None

    def _build_index(self) -> dict[str, int]:
        index = {key: i for i, key in enumerate(self.ids)}
        if len(index) != len(self.ids):
            twice = next(key for i, key in enumerate(self.ids) if index[key] != i)
            raise UserError(f"{self.path}: the id {twice!r} stands in it twice.")
        self._index = index
        return index

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, key: object) -> bool:
        return key in self._get_index()

    def __getstate__(self) -> dict[str, object]:
        state = self.__dict__.copy()
        # handles are valid in one process only; index, records and rows are made again when needed
        for name in ("_index", "_sources", "_rows", "_file", "_file_pid"):
            state[name] = None
        return state

    def __repr__(self) -> str:
        return f"FeatureStore({self.path!r}: {len(self)} items, dim {self.dim}, {self.dtype})"

    def count_rows(self, key: str) -> int:
        """Return the number of feature vectors of the image or video ``key``."""
        i = self._get_position(key)
        return int(self._offsets[i + 1] - self._offsets[i])

    def read(self, key: str) -> np.ndarray:
        """Read the features of the image or video ``key``.

        Returns:
            rows: ``[R, D]``, a new array of the store's dtype.
        """
        i = self._get_position(key)
        rows = self._read_rows(self._offsets.item(i), self._offsets.item(i + 1))
        if not self.rows_finite and not is_finite(rows):
            raise UserError(not_finite_message(self.path, key))
        return rows

    def read_all(self) -> np.ndarray:
        """Read all features of the store, ``[total rows, D]``, in the order of the file. Raise
        UserError if a value is not finite."""
        rows = self._read_rows(0, self._num_rows)
        if not self.rows_finite and not is_finite(rows):
            self.check_finite()
        return rows

    def get_source(self, key: str) -> Optional[Source]:
        """Return size, time and SHA-256 of the image or video file of ``key``; None if not
        recorded. Raise UserError if the store does not have ``key``, or its records are damaged."""
        return self._read_sources()[self._get_position(key)]

    def count_sources(self) -> int:
        """Return the number of images or videos whose files are recorded."""
        return self._read_sources().count()

    def _read_sources(self) -> SourceTable:
        if self._sources is None:
            with open_hdf5(self.path) as file:
                size, _ = self._size_and_time
                self._sources = read_sources(self.path, file, len(self.ids), size)
        return self._sources

    def check_finite(self, *, reread: bool = False) -> None:
        """Check that all features are finite; without ``reread``, rely on ``rows_finite``.

        Raise UserError that names the first image or video with a NaN or an infinite value.
        """
        if self.rows_finite and not reread:
            return
        step = max(1, PIECE_BYTES // max(1, self.dim * self.dtype.itemsize))
        for start in range(0, self._num_rows, step):
            rows = self._read_rows(start, min(start + step, self._num_rows))
            if not is_finite(rows):
                row = start + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
                i = int(np.searchsorted(self._offsets, row, side="right")) - 1
                raise UserError(not_finite_message(self.path, self.ids[i]))
        self.rows_finite = True

    def check_content(self, progress: Progress = iter) -> str:
        """Compute the checksum of the store's ids and features, and return it; ``progress`` wraps
        the iteration over the ids.

        Raise UserError if the checksum differs from the checksum that was saved with the store.
        """
        # opened anew without the prefix, which is no part of the file
        checksum = content_checksum(FeatureStore(self.path), progress)
        if self.content_checksum not in ("", checksum):
            raise UserError(
                f"{self.path}: its ids, rows or extractor do not match the checksum that they were "
                "written with: some were changed or exchanged. Copy the store anew from where it "
                "is whole, or make it again."
            )
        return checksum

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        # a handle that was inherited through fork belongs to the parent
        if self._file is not None and self._file_pid == os.getpid():
            self._file.close()
        self._drop_handles()

    def _drop_handles(self) -> None:
        self._rows: Union[np.ndarray, h5py.Dataset, None] = None
        self._file: Optional[h5py.File] = None
        self._file_pid: Optional[int] = None

    def _get_index(self) -> dict[str, int]:
        # a pickle holds the ids, but not the index, which is built from them
        return self._build_index() if self._index is None else self._index

    def _get_position(self, key: str) -> int:
        try:
            # a call of _get_index at each read would slow down random reads of small rows
            index = self._get_index() if self._index is None else self._index
            return index[key]
        except KeyError:
            raise UserError(missing_key_message(key, self.ids, [self.path])) from None

    def _read_rows(self, start: int, end: int) -> np.ndarray:
        """Return rows ``start:end`` as a new array ``[end - start, D]``."""
        try:
            return np.array(self._open_rows()[start:end], dtype=self.dtype)
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{self.path}: rows {start} to {end} unreadable: {reason}") from None

    def _open_rows(self) -> Union[np.ndarray, h5py.Dataset]:
        """Return all rows ``[total rows, D]``, in memory, mapped, or as a dataset of HDF5."""
        # an HDF5 file that was inherited through fork shares its file position with the parent
        is_foreign = self._file is not None and self._file_pid != os.getpid()
        if self._rows is None or is_foreign:
            if size_and_time(self.path) != self._size_and_time:
                raise UserError(f"{self.path}: was replaced or changed while in use. Start again.")
            if self._rows_offset is None:
                self._file, self._file_pid = open_hdf5(self.path), os.getpid()
                self._rows = self._file["features"]
            else:
                shape = (self._num_rows, self.dim)
                mapped = np.memmap(self.path, self.dtype, "r", self._rows_offset, shape)
                self._rows = np.asarray(mapped)  # slices of np.memmap are slow
            if self.preload:
                rows = self._rows[:]
                self._rows = rows.copy() if self._file is None else rows.astype(self.dtype)
                self._file = None
        return self._rows


class FeatureStores:
    """Union of several feature stores, with the interface of one store.

    ``read`` returns features in the widest dtype of the stores. ``attributes`` has the attributes
    on which all stores agree.

    Args:
        stores: Opened stores, at least one.
    """

    def __init__(self, stores: Sequence[FeatureStore]) -> None:
        if not stores:
            raise UserError("`paths` must name at least one feature store, but is empty.")
        self.stores = list(stores)
        first = self.stores[0]
        self.path = os.pathsep.join(store.path for store in self.stores)
        self.dim = first.dim
        self.dtype = np.result_type(*(store.dtype for store in self.stores))
        self.attributes = _merge_attributes(self.stores)
        for store in self.stores[1:]:
            if store.dim != first.dim:
                raise UserError(
                    f"{store.path}: features have dimension {store.dim}, but those of "
                    f"{first.path} have {first.dim}."
                )
        for i, store in enumerate(self.stores):
            for other in self.stores[:i]:
                twice = other._get_index().keys() & store._get_index().keys()
                if twice:
                    raise UserError(
                        f"the id {min(twice)!r} stands both in {other.path} and in {store.path} "
                        f"({len(twice)} such ids)."
                    )

    @property
    def ids(self) -> list[str]:
        # a list of millions of ids must not be copied at each access
        if len(self.stores) == 1:
            return self.stores[0].ids
        return [key for store in self.stores for key in store.ids]

    @property
    def extractor_attributes(self) -> dict[str, object]:
        """Recorded attributes of the feature extractor: the network, its weights, its options."""
        return {
            name: self.attributes[name]
            for name in (*EXTRACTOR_ATTRIBUTES, *EXTRACTOR_NOTES)
            if name in self.attributes
        }

    def __len__(self) -> int:
        return sum(len(store) for store in self.stores)

    def __contains__(self, key: object) -> bool:
        return any(key in store for store in self.stores)

    def count_rows(self, key: str) -> int:
        return self._find_store(key).count_rows(key)

    def read(self, key: str) -> np.ndarray:
        """Read the features of the image or video ``key``, see :meth:`FeatureStore.read`."""
        return self._find_store(key).read(key).astype(self.dtype, copy=False)

    def get_source(self, key: str) -> Optional[Source]:
        return self._find_store(key).get_source(key)

    def check_finite(self, *, reread: bool = False) -> None:
        for store in self.stores:
            store.check_finite(reread=reread)

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def _find_store(self, key: str) -> FeatureStore:
        for store in self.stores:
            if key in store:
                return store
        paths = [store.path for store in self.stores]
        raise UserError(missing_key_message(key, self.ids, paths))


def open_features(
    paths: Sequence[Union[str, os.PathLike]], *, preload: bool = False
) -> FeatureStores:
    """Open the feature stores ``paths`` as one store; :class:`FeatureStore` explains ``preload``.

    Raise UserError if a store cannot be read, or two stores share an id or differ in dimension or
    extractor.
    """
    return FeatureStores([FeatureStore(path, preload=preload) for path in paths])


def open_folder_features(
    folder: str, paths: Optional[str] = None, *, preload: bool = False
) -> FeatureStores:
    """Open the feature stores of a data folder, or the stores that ``--features`` names.

    Args:
        folder: Data folder with ``features.h5``, or with ``features.json``, a list of stores.
        paths: Value of ``--features``: paths of stores, joined by the system's path separator; None
            for the stores of the folder.
        preload: Keep all features in memory.
    """
    if paths:
        features = open_features(paths.split(os.pathsep), preload=preload)
    else:
        places = listed_stores(folder) or [(os.path.join(folder, "features.h5"), "")]
        stores = [FeatureStore(path, preload=preload, prefix=prefix) for path, prefix in places]
        features = FeatureStores(stores)
    # all at once: otherwise a NaN would end the training in whichever epoch reads it
    features.check_finite()
    for store in features.stores:
        # only a program that rewrote the store has cut off the checksum of its metadata
        if not store.has_checksum:
            store.check_content()
    return features


def listed_stores(folder: str) -> list[tuple[str, str]]:
    """Return the path and the key prefix of each feature store of a data folder.

    The prefix is put before each key of the store. If ``features.h5`` exists, it is the only store.
    Otherwise ``features.json`` lists the stores; without this file, there are none. Raise UserError
    if ``features.json`` is not a list of stores.
    """
    own, path = os.path.join(folder, "features.h5"), os.path.join(folder, STORE_LIST)
    if os.path.exists(own):
        return [(own, "")]
    if not os.path.exists(path):
        return []
    content = read_json(path)
    stores = []
    for entry in content if isinstance(content, list) else [None]:
        entry = entry if isinstance(entry, dict) else {}
        store, prefix = entry.get("store"), entry.get("prefix", "")
        if not isinstance(store, str) or not isinstance(prefix, str):
            raise UserError(
                f'{path}: must be a list of {{"store": path, "prefix": text}}, but is not.'
            )
        stores.append((os.path.normpath(os.path.join(folder, store)), prefix))
    return stores


def _merge_attributes(stores: Sequence[FeatureStore]) -> dict[str, object]:
    """Return the attributes on which all stores agree; raise UserError if the extractors differ."""
    first: dict[str, tuple[object, str]] = {}
    shared = dict(stores[0].attributes)
    for store in stores:
        for name, value in store.attributes.items():
            known, path = first.setdefault(name, (value, store.path))
            # earlier versions recorded another digest of the weights
            is_older = len({str(x).rpartition(":")[0] for x in (known, value)}) > 1
            if name == "weights_digest" and is_older:
                continue
            if known != value and name in EXTRACTOR_ATTRIBUTES:
                raise UserError(
                    f"{store.path}: made with {name} = {value!r}, but {path} with "
                    f"{name} = {known!r}."
                )
        shared = {k: v for k, v in shared.items() if store.attributes.get(k) == v}
    return shared


def is_finite(rows: np.ndarray) -> bool:
    """Return True if no value of ``rows`` is NaN or infinite."""
    if rows.dtype == np.float16 and rows.flags.c_contiguous:
        # NaN and infinity have all exponent bits set; np.isfinite would be slower, since numpy has
        # no arithmetic in half precision
        return not bool(((rows.view(np.uint16) & 0x7C00) == 0x7C00).any())
    return bool(np.isfinite(rows).all())


def missing_key_message(key: object, ids: Sequence[str], paths: Sequence[str]) -> str:
    """Return a message of one line about a key that no store has, with the most similar id.

    ``ids`` are the ids of all stores, ``paths`` the paths of the stores.
    """
    where = " or ".join(paths)
    message = f"{where}: no features for {key!r} among {len(ids)} items."
    closest = _find_closest_id(str(key), ids)
    return message if closest is None else f"{message} Closest: {closest!r}"


def _find_closest_id(key: str, ids: Sequence[str]) -> Optional[str]:
    # if a key is missing, most often only its folder, suffix or case differ from an id
    def bare(text: str) -> str:
        return PurePosixPath(text.strip()).name.rsplit(".", 1)[0].lower()

    wanted = bare(key)
    for candidate in ids:
        if bare(candidate) == wanted:
            return candidate
    matches = difflib.get_close_matches(key, ids[:MAX_SEARCHED_FOR_HINT], n=1)
    return matches[0] if matches else None


def not_finite_message(path: str, key: str) -> str:
    """Return a message of one line about the image or video ``key``: features are not finite."""
    return f"{path}: the features of {key!r} have NaN or infinite values."
