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
video frame. Three optional members record the files from which the features were computed:
``source_sizes`` ``[items]`` int64 (bytes; -1 without record), ``source_times`` ``[items]`` int64
(last change in nanoseconds) and ``source_digests`` ``[items, 32]`` uint8 (SHA-256).

The attribute ``digest`` covers each id together with its rows, and the attributes that identify the
extractor, so that swapped ids are detected. ``fairseq-mm store verify`` and ``fairseq-mm doctor``
compare it. :class:`fairseq_mm.data.feature_store_writer.FeatureStoreWriter` writes the files.
"""

import difflib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Callable, NamedTuple, Optional, Union

import h5py
import numpy as np

from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError, file_errors

Progress = Callable[[Iterable[str]], Iterable[str]]

FORMAT = "fairseq_mm feature store"
FORMAT_VERSION = 1
SOURCE_MEMBERS = ("source_sizes", "source_times", "source_digests")
# attributes of the file itself, not of the features: a copy must not inherit them. Version 0.2
# wrote `content_checksum`, which does not cover the extractor
FILE_ATTRIBUTES = ("format", "format_version", "rows_finite", "content_checksum", "digest")
# attributes that must agree wherever features of two extractors could be mixed
EXTRACTOR_ATTRIBUTES = (
    *("extractor", "weights", "layer", "grid", "preprocessing"),
    *("frame_rate", "stride"),  # only videos have these
    "weights_digest",  # only networks of timm have one
    "decoder",  # only if Pillow did not decode the images
)
# attributes that describe the extractor further, and may differ between features that fit together:
# version of the network's library, and config of a network of transformers
EXTRACTOR_NOTES = ("library", "network_config")
# the stores of a data folder without features.h5: [{"store": path, "prefix": text}, ...]
STORE_LIST = "features.json"
# attributes of a part that extract --shard wrote: "2/3", and a digest of the ids of all parts
SHARD_ATTRIBUTES = ("shard", "shard_of")
# rows are checked and copied in pieces, since a whole store may not fit into memory
PIECE_BYTES = 1 << 25
# difflib compares a missing key with each id, which takes too long for millions of ids
MAX_SEARCHED_FOR_HINT = 50_000


class Source(NamedTuple):
    """Record of the image or video file from which features were computed.

    Attributes:
        size: Size of the file, or of the member of an archive, in bytes.
        time: Time of the last change of the file, or of the archive, in nanoseconds.
        digest: SHA-256 of the bytes of the file or member.
    """

    size: int
    time: int
    digest: bytes


class FeatureStore:
    """Feature store opened for reading.

    Contiguous rows are memory-mapped; others are read by libhdf5, which opens the file each time.
    No handle stays open: a store can be built before workers are forked, and can be pickled.

    Args:
        path: Path of the HDF5 file.
        preload: Keep all features in memory (once per process; forked workers share them).
        prefix: Text that is put before each key, to distinguish stores with common keys.

    Attributes:
        ids: The keys, in the order of the file.
        dim: Feature dimension.
        dtype: float16 or float32, the dtype of the features that ``read`` returns.
        attributes: Attributes of the file that say how and when the features were made.
        rows_finite: True if the writer or ``check_finite`` has checked that all features are
            finite. Otherwise every ``read`` checks its result.
        digest: Digest from the time of writing; empty in stores of other programs.
    """

    def __init__(
        self, path: Union[str, os.PathLike], *, preload: bool = False, prefix: str = ""
    ) -> None:
        self.path = os.fspath(path)
        self.preload = preload
        self._sources: Optional[tuple[np.ndarray, ...]] = None
        self._rows: Optional[np.ndarray] = None
        # the type of h5py's error depends on which byte of a file is damaged
        with file_errors(self.path, "is no feature store of fairseq-mm, or is damaged"):
            self._size_and_time = self._read_size_and_time()
            with h5py.File(self.path, "r", locking=False) as file:
                self._read_layout(file, prefix)
        if preload:
            self._read_rows(0, 0)

    def _read_layout(self, file: h5py.File, prefix: str) -> None:
        version = file.attrs["format_version"]
        features = file["features"]
        self.dtype = features.dtype.newbyteorder("=")
        self._num_rows, self.dim = features.shape
        keys = file["ids"].asstr()[:].tolist()
        self.ids = [prefix + key for key in keys] if prefix else keys
        self._index = {key: i for i, key in enumerate(self.ids)}
        self._offsets = file["offsets"][:].astype(np.int64)
        ends = (len(self._offsets), self._offsets[0], self._offsets[-1])
        is_ended = ends == (len(keys) + 1, 0, self._num_rows)
        for fault, is_there in (
            (f"format version {version}, which is newer", version > FORMAT_VERSION),
            (f"features of {self.dtype}", self.dtype not in (np.float16, np.float32)),
            ("an id twice", len(self._index) < len(keys)),
            ("offsets of other rows", not is_ended or (np.diff(self._offsets) < 1).any()),
        ):
            if is_there:
                raise ValueError(f"it has {fault}")
        # rows in chunks, in other files or with other bytes than the dtype's are left to libhdf5
        is_plain = features.file.filename == file.filename and features.id.get_type().equal(
            h5py.h5t.py_create(self.dtype)
        )
        self._rows_offset = features.id.get_offset() if is_plain else None
        values: dict[str, Any] = {}  # plain Python values, which JSON can represent
        for name, value in file.attrs.items():
            if isinstance(value, (np.generic, np.ndarray)):
                value = value.tolist()
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            values[name] = value if isinstance(value, (str, bool, int, float)) else str(value)
        self.rows_finite = bool(values.get("rows_finite"))
        self.digest = str(values.get("digest", ""))
        self.attributes = {k: v for k, v in values.items() if k not in FILE_ATTRIBUTES}

    def _read_size_and_time(self) -> tuple[int, int]:
        status = os.stat(self.path)
        return status.st_size, status.st_mtime_ns

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, key: object) -> bool:
        return key in self._index

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, **dict.fromkeys(("_index", "_sources", "_rows"))}  # made again

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._index = {key: i for i, key in enumerate(self.ids)}

    def count_rows(self, key: str) -> int:
        """Return the number of feature vectors of the image or video ``key``."""
        i = self._get_position(key)
        return int(self._offsets[i + 1] - self._offsets[i])

    def read(self, key: str) -> np.ndarray:
        """Read the features ``[R, D]`` of the image or video ``key``, as a new array."""
        i = self._get_position(key)
        rows = self._read_rows(self._offsets.item(i), self._offsets.item(i + 1))
        if not self.rows_finite:
            check_rows_finite(rows, self.path, key)
        return rows

    def read_all(self) -> np.ndarray:
        """Read all features of the store, ``[total rows, D]``, in the order of the file."""
        self.check_finite()
        return self._read_rows(0, self._num_rows)

    def get_source(self, key: str) -> Optional[Source]:
        """Return the record of the image or video file of ``key``; None if there is none."""
        if self._sources is None:
            with h5py.File(self.path, "r", locking=False) as file:
                has_sources = SOURCE_MEMBERS[0] in file
                self._sources = tuple(file[name][:] for name in SOURCE_MEMBERS if has_sources)
        i = self._get_position(key)
        if not self._sources or self._sources[0][i] < 0:
            return None
        sizes, times, digests = self._sources
        return Source(int(sizes[i]), int(times[i]), digests[i].tobytes())

    def check_finite(self, *, reread: bool = False) -> None:
        """Raise UserError about the first image or video with a NaN or infinite value. If
        ``reread`` is False, trust the attribute ``rows_finite``."""
        if self.rows_finite and not reread:
            return
        step = max(1, PIECE_BYTES // max(1, self.dim * self.dtype.itemsize))
        for start in range(0, self._num_rows, step):
            rows = self._read_rows(start, min(start + step, self._num_rows))
            if not is_finite(rows):
                row = start + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
                i = int(np.searchsorted(self._offsets, row, side="right")) - 1
                check_rows_finite(rows, self.path, self.ids[i])
        self.rows_finite = True

    def check_content(self, progress: Progress = iter) -> str:
        """Compute the digest of the store, and return it; ``progress`` wraps the iteration over the
        ids. Raise UserError if the digest differs from the digest that was saved."""
        # opened anew without the prefix, which is no part of the file
        store = FeatureStore(self.path)
        # a sum, so that shards merged in any order have the digest of one run
        digest = digest_text(
            # 0.2 and other programs left the extractor out
            (digest_of_extractor(store.attributes) if store.digest else 0)
            + sum(
                digest_of_item(key, store.dim, store.dtype.name, store.read(key).tobytes())
                for key in progress(store.ids)
            )
        )
        if self.digest not in ("", digest):
            raise UserError(
                f"{self.path}: its ids, rows or extractor do not match the digest that they were "
                "written with: some were changed or exchanged. Copy the store anew from where it "
                "is whole, or make it again."
            )
        return digest

    def _get_position(self, key: str) -> int:
        try:
            return self._index[key]
        except KeyError:
            raise missing_key_error(key, self.ids, [self.path]) from None

    def _read_rows(self, start: int, end: int) -> np.ndarray:
        if self._rows is None:
            if self._read_size_and_time() != self._size_and_time:
                raise UserError(f"{self.path}: was replaced or changed while in use. Start again.")
            if self._rows_offset is not None:
                shape = (self._num_rows, self.dim)
                mapped = np.memmap(self.path, self.dtype, "r", self._rows_offset, shape)
                # slices of np.memmap are slow
                self._rows = np.array(mapped) if self.preload else np.asarray(mapped)
            else:
                with h5py.File(self.path, "r", locking=False) as file:
                    piece = slice(None) if self.preload else slice(start, end)
                    rows = file["features"][piece].astype(self.dtype)
                if not self.preload:
                    return rows
                self._rows = rows
        return np.array(self._rows[start:end], dtype=self.dtype)


class FeatureStores:
    """Union of several feature stores, with the interface of one store.

    ``read`` returns features in the widest dtype of the stores. ``attributes`` has the attributes
    on which all stores agree.

    Args:
        stores: Opened stores, at least one.
    """

    def __init__(self, stores: Sequence[FeatureStore]) -> None:
        self.stores = list(stores)
        first = self.stores[0]
        self.path = os.pathsep.join(store.path for store in self.stores)
        self.dim = first.dim
        self.dtype = np.result_type(*(store.dtype for store in self.stores))
        self.attributes = {
            name: value
            for name, value in first.attributes.items()
            if all(store.attributes.get(name) == value for store in self.stores)
        }
        for i, store in enumerate(self.stores):
            for other in self.stores[:i]:
                _check_fit(other, store)

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
        """Read the features ``[R, D]`` of the image or video ``key``."""
        return self._find_store(key).read(key).astype(self.dtype, copy=False)

    def get_source(self, key: str) -> Optional[Source]:
        return self._find_store(key).get_source(key)

    def check_finite(self, *, reread: bool = False) -> None:
        for store in self.stores:
            store.check_finite(reread=reread)

    def _find_store(self, key: str) -> FeatureStore:
        for store in self.stores:
            if key in store:
                return store
        raise missing_key_error(key, self.ids, [store.path for store in self.stores])


def _check_fit(first: FeatureStore, second: FeatureStore) -> None:
    """Raise UserError if the stores have a common id, or differ in dimension or extractor."""
    for name in ("dim", *EXTRACTOR_ATTRIBUTES):
        ours, theirs = ({**x.attributes, "dim": x.dim}.get(name) for x in (first, second))
        # version 0.2 recorded another digest of the weights, without this prefix
        is_older = name == "weights_digest" and not str(ours)[:6] == str(theirs)[:6] == "names:"
        if ours != theirs and ours is not None and theirs is not None and not is_older:
            raise UserError(
                f"{second.path}: made with {name} = {theirs!r}, but {first.path} with "
                f"{name} = {ours!r}."
            )
    twice = first._index.keys() & second._index.keys()
    if twice:
        raise UserError(
            f"the id {min(twice)!r} stands both in {first.path} and in {second.path} "
            f"({len(twice)} such ids)."
        )


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
    return features


def listed_stores(folder: str) -> list[tuple[str, str]]:
    """Return the path and the key prefix of each feature store of a data folder.

    The prefix is put before each key of the store. If ``features.h5`` exists, it is the only store.
    Otherwise ``features.json``, which ``prepare`` writes, lists the stores; without it, the folder
    has none.
    """
    own, path = os.path.join(folder, "features.h5"), os.path.join(folder, STORE_LIST)
    if os.path.exists(own):
        return [(own, "")]
    entries = read_json(path) if os.path.exists(path) else []
    return [
        (os.path.normpath(os.path.join(folder, entry["store"])), entry.get("prefix", ""))
        for entry in entries
    ]


def digest_of_item(key: str, dim: int, dtype: str, rows: bytes) -> int:
    """Return the digest of one image's or video's id, without key prefix, and feature bytes.

    The digest of a store is the sum of its items' digests and of :func:`digest_of_extractor`.
    """
    digest = hashlib.sha256(f"{key}\0{dim}\0{dtype}\0".encode())
    digest.update(rows)
    return int.from_bytes(digest.digest(), "big")


def digest_of_extractor(attributes: Mapping[str, Any]) -> int:
    """Return the digest of the attributes of an extractor that must agree in compatible stores."""
    values = {name: attributes[name] for name in EXTRACTOR_ATTRIBUTES if name in attributes}
    text = json.dumps(values, sort_keys=True, default=lambda value: value.item())  # NumPy's numbers
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


def digest_text(total: int) -> str:
    """Return ``total``, a sum of digests, modulo 2^256 as 64 hexadecimal digits."""
    return f"{total % (1 << 256):064x}"


def is_finite(rows: np.ndarray) -> bool:
    """Return True if no value of ``rows`` is NaN or infinite."""
    if rows.dtype == np.float16 and rows.flags.c_contiguous:
        # NaN and infinity have all exponent bits set; np.isfinite would be slower, since numpy has
        # no arithmetic in half precision
        return not bool(((rows.view(np.uint16) & 0x7C00) == 0x7C00).any())
    return bool(np.isfinite(rows).all())


def missing_key_error(key: object, ids: Sequence[str], paths: Sequence[str]) -> UserError:
    """Return an error about a key that no store of ``paths`` has; suggest the most similar id of
    ``ids``."""

    # if a key is missing, most often only its folder, suffix or case differ from an id
    def bare(text: str) -> str:
        return PurePosixPath(text.strip()).name.rsplit(".", 1)[0].lower()

    wanted = bare(str(key))
    closest = [candidate for candidate in ids if bare(candidate) == wanted][:1]
    closest = closest or difflib.get_close_matches(str(key), ids[:MAX_SEARCHED_FOR_HINT], n=1)
    hint = f" Closest: {closest[0]!r}" if closest else ""
    where = " or ".join(paths)
    return UserError(f"{where}: no features for {key!r} among {len(ids)} items.{hint}")


def check_rows_finite(rows: np.ndarray, path: str, key: str) -> None:
    if not is_finite(rows):
        raise UserError(f"{path}: the features of {key!r} have NaN or infinite values.")
