"""Opens and checks a feature store's HDF5 file, before any feature is read."""

import dataclasses
import json
import math
import os
from typing import Optional

import h5py
import numpy as np

from fairseq_mm.data.feature_store_checksum import check_metadata
from fairseq_mm.errors import UserError

FORMAT = "fairseq_mm feature store"
FORMAT_VERSION = 1
MEMBERS = ("features", "offsets", "ids")
# attributes of the file itself, not of the features: a copy must not inherit them
FILE_ATTRIBUTES = ("format", "format_version", "rows_finite", "content_checksum", "digest")
# features compress by a small factor; a file that declares more would fill the reader's memory
MAX_COMPRESSION = 128

_IEEE_TYPES = (
    *(h5py.h5t.IEEE_F16LE, h5py.h5t.IEEE_F16BE),
    *(h5py.h5t.IEEE_F32LE, h5py.h5t.IEEE_F32BE),
)


@dataclasses.dataclass
class StoreLayout:
    """Checked metadata of a feature store.

    :class:`.FeatureStore` describes the attributes that are not listed here.

    Attributes:
        offsets: ``[items + 1]`` int64; rows ``offsets[i]:offsets[i + 1]`` of the dataset
            ``features`` belong to the image or video with the number i.
        rows_finite: True if the writer has checked that all features are finite, and no other
            program has changed the file since. Such a change would have cut off the checksum.
        rows_offset: Position of the features in the file, in bytes; None if libhdf5 must read the
            features, because they lie in chunks or have the other byte order.
        size_and_time: Size of the file in bytes and time of its last change in nanoseconds.
    """

    ids: list[str]
    offsets: np.ndarray
    dim: int
    dtype: np.dtype
    attributes: dict[str, object]
    rows_finite: bool
    rows_offset: Optional[int]
    size_and_time: tuple[int, int]
    has_checksum: bool
    content_checksum: str
    has_digest: bool


def read_layout(path: str) -> StoreLayout:
    """Read the metadata of a feature store, and check that its datasets fit together.

    Raise UserError if they do not fit together, or if the file is missing, is damaged, is no
    feature store or has a newer format version.
    """
    # taken before opening, so that a file that is replaced meanwhile is noticed at the first read
    stat = size_and_time(path)
    has_checksum = os.path.isfile(path) and check_metadata(path)
    with open_hdf5(path) as file:
        try:
            return _parse_layout(path, file, stat, has_checksum)
        except UserError:
            raise
        # the type of h5py's error depends on which byte of the metadata is damaged
        except (OSError, RuntimeError, LookupError, ValueError, TypeError, MemoryError) as error:
            reason = str(error) or type(error).__name__  # h5py raises some errors without a text
            raise UserError(f"{path}: HDF5 file is damaged or cut short: {reason}") from None


def _parse_layout(
    path: str, file: h5py.File, stat: tuple[int, int], has_checksum: bool
) -> StoreLayout:
    features, offsets, ids = _get_members(path, file)
    if features.ndim != 2 or not features.shape[1] or not _is_ieee(features):
        raise UserError(
            f"{path}: `features` must be [rows, dim] of float16 or float32, but is "
            f"{list(features.shape)} of {features.dtype} or another layout."
        )
    # before any member is read: h5py allocates the size that the file declares
    for name, member in zip(MEMBERS, (features, offsets, ids)):
        check_storage(path, name, member, stat[0])
    num_rows, dim = features.shape
    if ids.ndim != 1 or h5py.check_string_dtype(ids.dtype) is None:
        raise UserError(f"{path}: `ids` must be a list of strings, but is {ids.dtype}.")
    try:
        keys = ids.asstr()[:].tolist()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: `ids` must be UTF-8: {error}") from None
    # h5py gives no offset for chunked, compressed or compact data
    offset = features.id.get_offset() if features.chunks is None else None
    has_digest = "digest" in file.attrs
    name = "digest" if has_digest else "content_checksum"
    return StoreLayout(
        ids=keys,
        offsets=_read_offsets(path, offsets, len(keys), num_rows),
        dim=dim,
        dtype=features.dtype.newbyteorder("="),
        attributes={
            name: _to_python_value(value)
            for name, value in file.attrs.items()
            if name not in FILE_ATTRIBUTES
        },
        # another program may have changed rows and kept the attribute, but it lost the checksum
        rows_finite=has_checksum and bool(file.attrs.get("rows_finite", False)),
        rows_offset=offset if features.dtype.isnative else None,
        size_and_time=stat,
        has_checksum=has_checksum,
        content_checksum=str(_to_python_value(file.attrs.get(name, ""))),
        has_digest=has_digest,
    )


def _get_members(path: str, file: h5py.File) -> list[h5py.Dataset]:
    # `name in file` follows links, and would open the files to which external links point
    absent = [name for name in MEMBERS if not file.id.links.exists(name.encode())]
    version = file.attrs.get("format_version")
    if version is None or absent:
        missing = ", ".join(absent) or "the attribute format_version"
        raise UserError(
            f"{path}: is an HDF5 file but no feature store ({missing} is missing). "
            f"Make one with: fairseq-mm extract, or fairseq-mm store import"
        )
    if not isinstance(version, (int, np.integer)) or version > FORMAT_VERSION:
        raise UserError(
            f"{path}: feature store of format version {version}, but this version of "
            f"fairseq-mm reads up to {FORMAT_VERSION}. Update it: pip install -U fairseq-mm"
        )
    return [get_own_dataset(path, file, name) for name in MEMBERS]


def get_own_dataset(path: str, file: h5py.File, name: str) -> h5py.Dataset:
    """Return the dataset ``name`` of the HDF5 file ``file``, without opening another file. Raise
    UserError if ``name`` is a link, is no dataset, or has its values in other files."""
    if file.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise UserError(f"{path}: `{name}` must lie in the file itself, but is a link.")
    member = file[name]
    if not isinstance(member, h5py.Dataset):
        kind = "a group" if isinstance(member, h5py.Group) else "a datatype"
        raise UserError(f"{path}: `{name}` must be a dataset, but is {kind}.")
    if member.shape is None:
        raise UserError(f"{path}: `{name}` must be a dataset with values, but has none.")
    # the values lie elsewhere: the reader would take other bytes of this file for them
    if member.is_virtual or member.external:
        kind = "a virtual dataset of other datasets" if member.is_virtual else "in other files"
        raise UserError(f"{path}: `{name}` must lie in the file itself, but is {kind}.")
    return member


def _is_ieee(dataset: h5py.Dataset) -> bool:
    # not the dtype: h5py shows numbers of other layouts, such as bfloat16, in a dtype that holds
    # them, although the reader would take the bytes of the file for IEEE numbers
    stored = dataset.id.get_type()
    return any(map(stored.equal, _IEEE_TYPES))


def check_storage(path: str, name: str, dataset: h5py.Dataset, size: int) -> None:
    """Check that a file of ``size`` bytes can hold the values that a dataset declares. Raise
    UserError if it cannot. ``path`` and ``name`` (of the dataset) are for messages."""
    declared = dataset.size * dataset.dtype.itemsize
    # the storage size is metadata, too, and may be more than the whole file
    limit = min(dataset.id.get_storage_size(), size)
    if dataset.chunks is not None:
        num_chunks = math.prod(-(-n // chunk) for n, chunk in zip(dataset.shape, dataset.chunks))
        # libhdf5 reads a chunk that is missing as zeros, without an error
        is_whole = dataset.id.get_num_chunks() == num_chunks
        limit = limit * MAX_COMPRESSION if is_whole else 0
        # libhdf5 allocates whole chunks, which may be larger than the dataset
        declared = max(declared, math.prod(dataset.chunks) * dataset.dtype.itemsize)
    if dataset.size and declared > limit:
        raise UserError(
            f"{path}: `{name}` declares {declared:,} bytes, but the file of {size:,} bytes does "
            "not hold them: it is damaged or cut short."
        )


def _read_offsets(path: str, dataset: h5py.Dataset, items: int, rows: int) -> np.ndarray:
    if dataset.shape != (items + 1,) or dataset.dtype.kind not in "iu":
        raise UserError(
            f"{path}: `offsets` must be {items + 1} integers for {items} ids, but is "
            f"{list(dataset.shape)} of {dataset.dtype}."
        )
    offsets = dataset[:].astype(np.int64)
    if offsets[0] != 0 or offsets[-1] != rows:
        raise UserError(
            f"{path}: `offsets` must run from 0 to the {rows} rows of `features`, but runs from "
            f"{offsets[0]} to {offsets[-1]}."
        )
    empty = np.flatnonzero(np.diff(offsets) <= 0)
    if len(empty):
        i = int(empty[0])
        raise UserError(
            f"{path}: `offsets` must grow, but item {i} is rows {offsets[i]} to {offsets[i + 1]}."
        )
    return offsets


def open_hdf5(path: str) -> h5py.File:
    """Open an HDF5 file for reading, without a lock. Raise UserError if the file is missing,
    damaged or not HDF5."""
    if os.path.exists(path) and not os.path.isfile(path):  # libhdf5 would wait for a pipe's writer
        raise UserError(f"{path}: is a folder, a device or a pipe, and no feature store.")
    try:
        # no lock: many readers at once, also on file systems without locks (NFS)
        return h5py.File(path, "r", locking=False)
    except FileNotFoundError:
        raise UserError(f"{path}: feature store not found.") from None
    except OSError as error:
        # h5py raises OSError for every cause, but each cause needs another remedy of the user
        if not os.access(path, os.R_OK):
            raise UserError(f"{path}: feature store cannot be opened: {error}") from None
        if not h5py.is_hdf5(path):
            raise UserError(f"{path}: is no HDF5 file, so no feature store.") from None
        raise UserError(f"{path}: HDF5 file is damaged or cut short: {error}") from None


def size_and_time(path: str) -> tuple[int, int]:
    """Return a file's size in bytes and the time of its last change in nanoseconds."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        raise UserError(f"{path}: feature store not found.") from None
    except OSError as error:
        raise UserError(f"{path}: feature store cannot be opened: {error.strerror}.") from None
    return stat.st_size, stat.st_mtime_ns


def _to_python_value(value: object) -> object:
    """Return an HDF5 attribute as a plain Python value."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, h5py.Empty):
        return ""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    try:
        json.dumps(value)
    except TypeError:  # JSON has no HDF5 references, compound values and bytes in arrays
        return str(value)
    return value
