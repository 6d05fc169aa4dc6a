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
    locked by the process that writes; the lock ends with the process.

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
from collections.abc import Mapping
from typing import Any, Optional, Union

import h5py
import numpy as np

import fairseq_mm
from fairseq_mm.data.feature_store import (
    FORMAT,
    FORMAT_VERSION,
    PIECE_BYTES,
    SOURCE_MEMBERS,
    Source,
    check_rows_finite,
    digest_of_extractor,
    digest_of_item,
    digest_text,
)
from fairseq_mm.data.folder_lock import locked_folder
from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError, file_errors

logger = logging.getLogger(__name__)

_NO_SOURCE = Source(-1, 0, bytes(32))


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
        self.attributes = {"package_version": fairseq_mm.__version__, **attributes}
        self._forget_items()
        self._files = contextlib.ExitStack()
        self._is_open = False
        try:
            with file_errors(self.partial_path, "cannot be written", OSError):
                self._open(overwrite, resume)
        except BaseException:
            # also Ctrl-C: no context is entered yet that would release the lock
            self.close()
            raise

    def _forget_items(self) -> None:
        self._sources: dict[str, Source] = {}
        self.done = self._sources.keys()
        self._counts = array.array("q")
        self._digest = 0

    def _open(self, overwrite: bool, resume: bool) -> None:
        if os.path.isdir(self.path) or (os.path.exists(self.path) and not overwrite):
            raise UserError(f"{self.path}: exists already. Delete it, or replace it: --overwrite")
        self._files.enter_context(locked_folder(self.partial_path))
        if not resume:
            for name in ("header.json", "journal"):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(self._file(name))
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
            now = datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds")
            with open(path + ".tmp", "w", encoding="utf-8") as file:
                json.dump({**header, "created": now}, file, indent=1)
            os.replace(path + ".tmp", path)
        begun = read_json(path)
        self._created = begun.pop("created")
        for name in sorted({*begun, *header}):
            if begun.get(name) != header.get(name):
                raise UserError(
                    f"{self.partial_path}: was begun with {name} = {begun.get(name)!r}, but is to "
                    f"be continued with {header.get(name)!r}. Delete it to begin anew."
                )
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

    def _resume(self) -> None:
        """Continue the folder of an earlier writer.

        Read the files ``journal`` and ``rows``, and cut incomplete features off their ends.
        """
        # all rows are read again: the file system may write a line to disk before its rows
        journal_bytes = rows_bytes = 0
        row_bytes = self.dim * self.dtype.itemsize
        with open(self._file("journal"), "rb") as journal, open(self._file("rows"), "rb") as rows:
            for line in journal:
                source = _NO_SOURCE
                try:
                    text = line.decode("utf-8")
                    checksum, count, key, *rest = text.rstrip("\n").split("\t")
                    if rest:
                        size, time, digest = rest
                        source = Source(int(size), int(time), bytes.fromhex(digest))
                    num_bytes, expected = int(count) * row_bytes, int(checksum, 16)
                except ValueError:
                    break
                if not text.endswith("\n") or num_bytes <= 0 or len(source.digest) != 32:
                    break
                content = rows.read(num_bytes)
                if len(content) < num_bytes or zlib.crc32(content) != expected:
                    break
                self._add_item(key, content, source)
                journal_bytes += len(line)
                rows_bytes += len(content)
        cut = os.fstat(self._journal).st_size - journal_bytes
        if cut or os.fstat(self._rows).st_size != rows_bytes:
            logger.info(f"{self.partial_path}: cut off what was torn after {len(self.done)} items")
        self._truncate(rows_bytes, journal_bytes)

    def _truncate(self, rows_bytes: int, journal_bytes: int) -> None:
        # the journal first: a line without its rows would claim an item that does not exist
        for handle, size in ((self._journal, journal_bytes), (self._rows, rows_bytes)):
            os.ftruncate(handle, size)
            os.lseek(handle, size, os.SEEK_SET)

    def _add_item(self, key: str, content: bytes, source: Source) -> None:
        self._digest += digest_of_item(key, self.dim, self.dtype.name, content)
        self._counts.append(len(content) // (self.dim * self.dtype.itemsize))
        self._sources[key] = source

    def get_source(self, key: str) -> Optional[Source]:
        """Return the record of an image's or video's file from the folder ``<path>.partial``; None
        if there is none."""
        source = self._sources[key]
        return None if source == _NO_SOURCE else source

    def clear(self) -> None:
        """Drop all images and videos in the folder ``<path>.partial``."""
        self._truncate(0, 0)
        self._forget_items()

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
        # the journal has one line per id, and HDF5 ends a string at a zero byte
        if key.splitlines() != [key] or "\t" in key or "\0" in key or key in self.done:
            raise UserError(
                f"{self.path}: an id must be one line without tabs, and new, but is {key!r}."
            )
        array = np.asarray(rows)
        array = array[None] if array.ndim == 1 else array
        if array.ndim != 2 or array.shape[1] != self.dim or not len(array):
            raise UserError(
                f"{self.path}: features of {key!r} must be [rows, {self.dim}] with one row or "
                f"more, but are {list(np.shape(rows))}."
            )
        # numpy warns of values that become infinite; the check below names the item
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(array, dtype=self.dtype)
        check_rows_finite(stored, self.path, key)
        content = stored.tobytes()
        count = len(content) // (self.dim * self.dtype.itemsize)
        fields = [f"{zlib.crc32(content):08x}", str(count), key]
        if source is not None:
            fields += [str(source.size), str(source.time), source.digest.hex()]
        line = ("\t".join(fields) + "\n").encode()
        try:
            # in this order: a line without its rows would claim an item that does not exist
            with file_errors(self.partial_path, "cannot be written", OSError):
                _write_all(self._rows, content)
                _write_all(self._journal, line)
        except BaseException:
            self.close()  # the last item may be incomplete: only a new writer checks that
            raise
        self._add_item(key, content, source or _NO_SOURCE)

    def finish(self) -> None:
        """Write the store from the folder ``<path>.partial``, move the store into place, and remove
        the folder. Raise UserError if the disk is full."""
        if not self._is_open:
            raise ValueError(f"{self.path}: the writer is closed.")
        try:
            with file_errors(self.path, "cannot be written", OSError):
                self._write_store(self._file("store"))
                os.replace(self._file("store"), self.path)
                # the journal first: after a kill, the rest is then not taken for an unfinished run
                os.remove(self._file("journal"))
                shutil.rmtree(self.partial_path)
        finally:
            self._is_open = False
            self.close()

    def _write_store(self, path: str) -> None:
        offsets = np.zeros(len(self.done) + 1, dtype=np.int64)
        np.cumsum(self._counts, out=offsets[1:])
        total = int(offsets[-1])
        row_bytes = self.dim * self.dtype.itemsize
        step = max(1, PIECE_BYTES // row_bytes)
        digest = digest_text(self._digest + digest_of_extractor(self.attributes))
        # h5py could align the rows to memory pages, but copying them would be a tenth slower
        with _RememberedErrors(path) as writable, h5py.File(writable, "w") as file:
            file.attrs.update(format=FORMAT, format_version=FORMAT_VERSION)
            file.attrs.update(rows_finite=True, digest=digest)
            file.attrs.update(self.attributes, created=self._created)
            file["offsets"] = offsets
            file.create_dataset(
                "ids",
                data=list(self.done) or None,
                shape=(len(self.done),),
                dtype=h5py.string_dtype(),
            )
            sources = list(self._sources.values())
            if any(source != _NO_SOURCE for source in sources):
                for name, values in zip(SOURCE_MEMBERS[:2], zip(*sources)):
                    file[name] = np.array(values, np.int64)
                digests = np.frombuffer(b"".join(source.digest for source in sources), np.uint8)
                file[SOURCE_MEMBERS[2]] = digests.reshape(len(sources), -1)
            features = file.create_dataset("features", shape=(total, self.dim), dtype=self.dtype)
            with open(self._file("rows"), "rb") as rows:
                for start in range(0, total, step):
                    count = min(step, total - start)
                    piece = np.frombuffer(rows.read(count * row_bytes), dtype=self.dtype)
                    features[start : start + count] = piece.reshape(count, self.dim)
        with open(path, "rb") as file:
            # the store is moved into place next, which must not reach the disk before it
            os.fsync(file.fileno())

    def close(self) -> None:
        """Release the lock of the folder ``<path>.partial``; remove the folder if it is empty."""
        if self._is_open and not self.done:
            with contextlib.suppress(OSError):
                shutil.rmtree(self.partial_path)
        self._is_open = False
        self._files.close()

    def __enter__(self) -> "FeatureStoreWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
