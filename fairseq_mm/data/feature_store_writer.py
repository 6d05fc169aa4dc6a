"""Writes the features of one image or video after the other to a feature store.

Features are appended to a folder ``<path>.partial``, so that an interrupted writer can be
continued. ``finish`` makes a contiguous HDF5 file from it, under a temporary name, and moves this
file into place. The folder holds

``header.json``
    dimension, dtype and attributes, with which a continuing writer must agree;
``rows``
    the raw feature vectors, one item (image or video) after the other;
``journal``
    one line per item, written after its vectors: CRC-32 of the vectors, number of vectors, key, and
    size, time and SHA-256 of the file from which they were computed, if these are known;
``lock``
    locked by the process that writes; the lock ends with the process;
``finished``
    empty file, written just before the store is moved into place.

A kill at any point leaves at most one incomplete item at the end of ``rows`` or ``journal``, which
the next writer cuts off. A power failure may lose vectors whose line in the journal was written;
the CRC shows it.
"""

import array
import contextlib
import datetime
import io
import json
import logging
import os
import shutil
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Optional, Union

import h5py
import numpy as np

import fairseq_mm
from fairseq_mm.data.feature_sources import DIGEST_BYTES, Source, SourceTable
from fairseq_mm.data.feature_store import PIECE_BYTES, is_finite, not_finite_message
from fairseq_mm.data.feature_store_checksum import (
    add_checksum,
    checksum_text,
    extractor_checksum,
    item_checksum,
)
from fairseq_mm.data.feature_store_file import FILE_ATTRIBUTES, FORMAT, FORMAT_VERSION
from fairseq_mm.data.folder_lock import locked_folder
from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError

logger = logging.getLogger(__name__)

# HDF5 keeps attributes up to 64 KiB, their header included
MAX_ATTRIBUTE_BYTES = 60_000


class FeatureStoreWriter:
    """Writer of one feature store, a context manager.

    Features are collected in the partial folder, ``<path>.partial``. If the context is left without
    ``finish``, the partial folder stays, and the next writer for the same path continues it.

    Args:
        path: Path of the HDF5 file to write.
        dim: Feature dimension.
        dtype: float16 or float32.
        attributes: Attributes that say who made the features and how: strings, numbers or booleans.
            The version of the package and the time of the start are added as ``package_version``
            and ``created``.
        overwrite: Replace a finished store at ``path`` as soon as the new store is finished.
        resume: Continue a partial folder; if False, its content is dropped.

    Attributes:
        done: Ids of the images or videos in the partial folder.
    """

    def __init__(
        self,
        path: Union[str, os.PathLike],
        *,
        dim: int,
        attributes: Mapping[str, object],
        dtype: Union[str, np.dtype] = "float16",
        overwrite: bool = False,
        resume: bool = True,
    ) -> None:
        self.path = os.fspath(path)
        self.partial_path = self.path + ".partial"
        self.dim = dim
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float16, np.float32):
            raise UserError(f"`dtype` must be float16 or float32, but is {self.dtype} instead.")
        if dim < 1:
            raise UserError(f"`dim` must be 1 or more, but is {dim} instead.")
        self.attributes = _check_attributes(attributes)
        self._forget_items()
        self._files = contextlib.ExitStack()
        self._is_open = False
        try:
            self._open(overwrite, resume)
        except OSError as error:
            self.close()
            raise UserError(f"{self.partial_path}: cannot write: {error.strerror}.") from None
        except BaseException:
            # also Ctrl-C: no context is entered yet that would release the lock
            self.close()
            raise

    def _forget_items(self) -> None:
        self._positions: dict[str, int] = {}
        self.done = self._positions.keys()
        self._counts = array.array("q")
        self._checksums = array.array("q")
        self._sources = SourceTable()
        self._content_checksum = 0

    def _open(self, overwrite: bool, resume: bool) -> None:
        if os.path.isdir(self.path):
            raise UserError(f"{self.path}: is a folder, but must be the name of a file to make.")
        self._files.enter_context(locked_folder(self.partial_path))
        if os.path.exists(self._file("finished")) and not os.path.exists(self._file("store")):
            # the last writer was killed after it had moved the store into place
            _remove_partial(self.partial_path, keep_lock=True)
        if os.path.exists(self.path) and not overwrite:
            if not os.path.exists(self._file("header.json")):
                # locking has made this folder: it must not look like an interrupted run
                _remove_partial(self.partial_path)
            raise UserError(f"{self.path}: exists already. Delete it, or replace it: --overwrite")
        for leftover in ("store", "finished", *(() if resume else ("header.json", "journal"))):
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._file(leftover))
        self._compare_header()
        self._rows = self._open_file("rows")
        self._journal = self._open_file("journal")
        self._resume()
        self._is_open = True

    def _file(self, name: str) -> str:
        return os.path.join(self.partial_path, name)

    def _open_file(self, name: str) -> int:
        handle = os.open(self._file(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._files.callback(os.close, handle)
        return handle

    def _compare_header(self) -> None:
        header = {
            "format_version": FORMAT_VERSION,
            "dim": self.dim,
            "dtype": self.dtype.name,
            **{f"attribute {name}": value for name, value in self.attributes.items()},
        }
        path = self._file("header.json")
        journal = self._file("journal")
        if not os.path.exists(path) or not os.path.exists(journal) or not os.path.getsize(journal):
            # without items there is nothing that the new header could contradict
            now = datetime.datetime.now(datetime.timezone.utc)
            header["created"] = now.isoformat("T", "seconds")
            _write_atomically(path, json.dumps(header, indent=1))
        try:
            begun = read_json(path)
            self._created = begun.pop("created")
        except (UserError, KeyError, AttributeError):
            raise UserError(
                f"{path}: is damaged. Delete {self.partial_path} to begin anew."
            ) from None
        header.pop("created", None)
        for name in sorted({*begun, *header}):
            if begun.get(name) != header.get(name):
                raise UserError(
                    f"{self.partial_path}: was begun with {name} = {begun.get(name)!r}, but is to "
                    f"be continued with {header.get(name)!r}. Delete it to begin anew."
                )

    def _resume(self) -> None:
        """Continue the folder of an earlier writer.

        Read its files ``journal`` and ``rows``, and cut incomplete features off their ends.
        """
        # all rows are read again: the file system may write a line to disk before its rows
        journal_bytes = rows_bytes = 0
        row_bytes = self.dim * self.dtype.itemsize
        with open(self._file("journal"), "rb") as journal, open(self._file("rows"), "rb") as rows:
            for line in journal:
                entry = _parse_journal_line(line)
                if entry is None:
                    break
                checksum, count, key, source = entry
                content = rows.read(count * row_bytes)
                if len(content) < count * row_bytes or zlib.crc32(content) != checksum:
                    break
                if key in self.done:
                    raise UserError(f"{self.partial_path}: the id {key!r} stands in it twice.")
                self._add_item(key, content, checksum, source)
                journal_bytes += len(line)
                rows_bytes += len(content)
        cut = os.fstat(self._journal).st_size - journal_bytes
        if cut or os.fstat(self._rows).st_size != rows_bytes:
            logger.info(f"{self.partial_path}: cut off what was torn after {len(self.done)} items")
        for handle, size in ((self._journal, journal_bytes), (self._rows, rows_bytes)):
            os.ftruncate(handle, size)
            os.lseek(handle, size, os.SEEK_SET)

    def _add_item(self, key: str, content: bytes, checksum: int, source: Optional[Source]) -> None:
        self._content_checksum += item_checksum(key, self.dim, self.dtype.name, content)
        self._positions[key] = len(self._positions)
        self._counts.append(len(content) // (self.dim * self.dtype.itemsize))
        self._checksums.append(checksum)
        self._sources.append(source)

    def get_source(self, key: str) -> Optional[Source]:
        """Return size, time and SHA-256 of the file of an image or video in the folder
        ``<path>.partial``; None if they are not recorded."""
        return self._sources[self._positions[key]]

    def remove(self, keys: Collection[str]) -> None:
        """Remove images or videos from the folder ``<path>.partial``, for example because their
        files have changed. Raise UserError if the disk is full."""
        row_bytes = self.dim * self.dtype.itemsize
        names = ("rows", "journal")
        try:
            with contextlib.ExitStack() as stack:
                rows, journal, new_rows, new_journal = (
                    stack.enter_context(open(self._file(f"{name}{end}"), mode))
                    for end, mode in (("", "rb"), (".tmp", "wb"))
                    for name in names
                )
                for line, key, count in zip(journal, self.done, self._counts):
                    content = rows.read(count * row_bytes)
                    if key not in keys:
                        new_rows.write(content)
                        new_journal.write(line)
            # a kill between the two leaves rows that the journal's CRCs do not match: the next
            # writer cuts them off
            for name, handle in zip(names, (self._rows, self._journal)):
                os.replace(self._file(f"{name}.tmp"), self._file(name))
                new = os.open(self._file(name), os.O_RDWR | os.O_CLOEXEC)
                os.dup2(new, handle, inheritable=False)
                os.close(new)
        except OSError as error:
            self.close()
            raise UserError(f"{self.partial_path}: cannot write: {error.strerror}.") from None
        self._forget_items()
        self._resume()

    def refuse_others_than(self, keys: Iterable[str]) -> None:
        """Check that all ids in the folder ``<path>.partial`` are among ``keys``. Raise UserError
        if an id is not: the folder was begun for other files."""
        others = self.done - set(keys)
        if others:
            raise UserError(
                f"{self.partial_path}: was begun for other items: {min(others)!r} is none of "
                f"these. Delete it to begin anew."
            )

    def check_same(self, key: str, rows: np.ndarray) -> None:
        """Check that ``key`` has the features ``rows`` in the folder ``<path>.partial``. Raise
        UserError if they differ: the folder was begun with other features under the same ids."""
        stored = self._convert_rows(key, rows)
        i = self._positions[key]
        if (self._counts[i], self._checksums[i]) != (len(stored), zlib.crc32(stored.tobytes())):
            raise UserError(
                f"{self.partial_path}: was begun with other features of {key!r} than are given "
                "now. Delete it to begin anew."
            )

    def append(self, key: str, rows: np.ndarray, source: Optional[Source] = None) -> None:
        """Append the features of one image or video.

        Args:
            key: Id of the image or video, without tabs and line breaks.
            rows: R feature vectors ``[R, D]``, or one vector ``[D]``; converted to the store's
                dtype.
            source: Record of the file from which the features were computed; None to record
                nothing.
        """
        if not self._is_open:
            raise ValueError(f"{self.path}: the writer is closed.")
        _check_key(key)
        if key in self.done:
            raise UserError(f"{self.path}: the id {key!r} was given twice.")
        stored = self._convert_rows(key, rows)
        content = stored.tobytes()
        checksum = zlib.crc32(content)
        fields = [f"{checksum:08x}", str(len(stored)), key]
        if source is not None:
            fields += [str(source.size), str(source.time), source.digest.hex()]
        line = ("\t".join(fields) + "\n").encode()
        try:
            # in this order: a line without its rows would claim an item that does not exist
            _write_all(self._rows, content)
            _write_all(self._journal, line)
        except BaseException as error:
            self.close()  # the last item may be incomplete: only a new writer checks that
            if isinstance(error, OSError):
                raise UserError(f"{self.partial_path}: cannot write: {error.strerror}.") from None
            raise
        self._add_item(key, content, checksum, source)

    def _convert_rows(self, key: str, rows: np.ndarray) -> np.ndarray:
        """Return ``rows`` as ``[R, D]`` in the dtype of the store. Raise UserError if they have
        another shape, or a value is not finite."""
        array = np.asarray(rows)
        array = array[None] if array.ndim == 1 else array
        if array.ndim != 2 or array.shape[1] != self.dim or not len(array):
            raise UserError(
                f"{self.path}: features of {key!r} must be [rows, {self.dim}] with one row or "
                f"more, but are {list(np.shape(rows))}."
            )
        # numpy warns of values that become infinite; the message below names the item
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(array, dtype=self.dtype)
        if is_finite(stored):
            return stored
        if not np.isfinite(array).all():
            raise UserError(not_finite_message(self.path, key))
        largest = float(np.abs(array.astype(np.float64)).max())
        remedy = " Store them as float32." if self.dtype == np.float16 else ""
        raise UserError(
            f"{self.path}: features of {key!r} reach {largest:.3g}, too large for "
            f"{self.dtype}.{remedy}"
        )

    def finish(self) -> None:
        """Write the store from the folder ``<path>.partial``, move the store into place, and remove
        the folder. Raise UserError if the disk is full."""
        if not self._is_open:
            raise ValueError(f"{self.path}: the writer is closed.")
        try:
            self._write_store(self._file("store"))
            # after a kill, this mark without a store says that the store is in place already
            _write_atomically(self._file("finished"), "")
            os.replace(self._file("store"), self.path)
            self._is_open = False
            _remove_partial(self.partial_path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(f"{self.path}: cannot write: {reason}.") from None
        finally:
            self.close()

    def _write_store(self, path: str) -> None:
        offsets = np.zeros(len(self.done) + 1, dtype=np.int64)
        np.cumsum(self._counts, out=offsets[1:])
        total = int(offsets[-1])
        row_bytes = self.dim * self.dtype.itemsize
        step = max(1, PIECE_BYTES // row_bytes)
        # h5py could align the rows to memory pages, but copying them would be a tenth slower
        with _RememberedErrors(path) as writable, h5py.File(writable, "w") as file:
            file.attrs["format"] = FORMAT
            file.attrs["format_version"] = FORMAT_VERSION
            file.attrs["rows_finite"] = True
            digest = self._content_checksum + extractor_checksum(self.attributes)
            file.attrs["digest"] = checksum_text(digest)
            for name, value in {**self.attributes, "created": self._created}.items():
                file.attrs[name] = value
            file["offsets"] = offsets
            file.create_dataset(
                "ids",
                data=list(self.done) or None,
                shape=(len(self.done),),
                dtype=h5py.string_dtype(),
            )
            self._sources.write(file)
            features = file.create_dataset("features", shape=(total, self.dim), dtype=self.dtype)
            with open(self._file("rows"), "rb") as rows:
                for start in range(0, total, step):
                    count = min(step, total - start)
                    piece = np.frombuffer(rows.read(count * row_bytes), dtype=self.dtype)
                    features[start : start + count] = piece.reshape(count, self.dim)
        add_checksum(path)

    def discard(self) -> None:
        """Remove the folder ``<path>.partial`` with all features. After a failed ``append``, which
        closes the writer, the folder stays for the next writer."""
        if self._is_open:
            self._is_open = False
            _remove_partial(self.partial_path)
        self.close()

    def close(self) -> None:
        """Release the lock of the folder ``<path>.partial``; remove the folder if it is empty."""
        if self._is_open and not self.done:
            with contextlib.suppress(OSError):
                _remove_partial(self.partial_path)
        self._is_open = False
        self._files.close()

    def __enter__(self) -> "FeatureStoreWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_leftover(path: Union[str, os.PathLike]) -> None:
    """Remove the folder ``<path>.partial`` of a writer that was killed after it had finished the
    store ``path``.

    A run that finds its store finished calls this function, since it starts no writer.
    """
    folder = os.fspath(path) + ".partial"
    with contextlib.suppress(UserError, OSError):
        # asked before locking, which creates a folder that does not exist
        if _is_leftover(folder):
            with locked_folder(folder):
                if _is_leftover(folder):
                    _remove_partial(folder)


def _is_leftover(folder: str) -> bool:
    names = set(os.listdir(folder))
    return names <= {"lock"} or ("finished" in names and "store" not in names)


def _remove_partial(folder: str, *, keep_lock: bool = False) -> None:
    # `finished` is removed last: then the next writer continues an interrupted removal
    names = set(os.listdir(folder)) - {"finished", "lock"}
    for name in (*names, "finished"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(folder, name))
    if not keep_lock:
        shutil.rmtree(folder)


def _parse_journal_line(line: bytes) -> Optional[tuple[int, int, str, Optional[Source]]]:
    """Parse a line of the file ``journal``; return None if the line is incomplete.

    Otherwise return the CRC-32 of the features, the number of vectors, the key, and the
    :class:`.Source` of the image or video file (None if it is not recorded).
    """
    try:
        text = line.decode("utf-8")
        checksum, count, key, *rest = text.rstrip("\n").split("\t")
        source = None
        if rest:
            size, time, digest = rest
            source = Source(int(size), int(time), bytes.fromhex(digest))
        is_whole = text.endswith("\n") and int(count) > 0
        is_whole = is_whole and (source is None or len(source.digest) == DIGEST_BYTES)
        return (int(checksum, 16), int(count), key, source) if is_whole else None
    except ValueError:
        return None


def _check_key(key: str) -> None:
    if not isinstance(key, str) or key.splitlines() != [key] or "\t" in key or "\0" in key:
        raise UserError(
            f"an id must be a string of one line without tabs, not empty, but is {key!r} instead."
        )
    try:
        key.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"the id {key!r} cannot be written as UTF-8.") from None


def _check_attributes(attributes: Mapping[str, object]) -> dict[str, object]:
    checked: dict[str, object] = {"package_version": fairseq_mm.__version__}
    for name, value in attributes.items():
        if name in FILE_ATTRIBUTES or name == "created":
            raise UserError(f"the attribute {name!r} is set by the feature store itself.")
        plain = value.item() if isinstance(value, np.generic) else value
        if not name or not isinstance(plain, (str, bool, int, float)):
            raise UserError(
                f"the attribute {name!r} must be a string, a number or a truth value, but is "
                f"{value!r} instead."
            )
        if len(str(plain).encode("utf-8", "surrogateescape")) > MAX_ATTRIBUTE_BYTES:
            raise UserError(
                f"the attribute {name!r} must be at most {MAX_ATTRIBUTE_BYTES} bytes long."
            )
        checked[name] = plain
    return checked


class _RememberedErrors(io.FileIO):
    """File for h5py that raises the error of the first failed write only when the file is
    closed."""

    # libhdf5 ends the process with a segmentation fault if a write fails, because the disk is full
    # or the file exceeds the largest size that the system allows
    def __init__(self, path: str) -> None:
        super().__init__(path, "w+")
        self._error: Optional[OSError] = None

    def write(self, content: Any) -> int:
        try:
            view = memoryview(content).cast("B")
            while view and self._error is None:
                view = view[super().write(view) :]
        except OSError as error:
            self._error = error
        return memoryview(content).nbytes

    def truncate(self, size: Optional[int] = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size or 0

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._error is not None:
            raise self._error from None


def _write_all(handle: int, content: bytes) -> None:
    # os.write may write a part only: Linux writes at most 2 GiB at once
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]


def _write_atomically(path: str, text: str) -> None:
    temporary = path + ".tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
