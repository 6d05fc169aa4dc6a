"""Reads numpy's files without unpickling and without filling the memory."""

import errno
import io
import math
import os
import zipfile
from pathlib import Path
from typing import Any, Optional

import numpy as np

from fairseq_mm.errors import file_errors


def load_numpy(path: Path) -> Any:
    """Open an ``.npy`` file (mapped, since it may be larger than the memory) or an ``.npz`` file.
    Raise UserError if it is damaged, is the other kind, or holds Python objects."""
    with file_errors(path):
        content = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(content, np.ndarray) != (path.suffix == ".npy"):
            raise ValueError("a single array must be named .npy, and an archive .npz")
        return content


def read_array(content: bytes, name: str) -> np.ndarray:
    """Return the array in the content of an ``.npy`` file, which may be hostile. Raise UserError if
    the content is damaged, or holds Python objects. ``name`` names the file in messages."""
    stream = io.BytesIO(content)
    with file_errors(name):
        shape, fortran_order, dtype = _read_header(stream)
        declared, size = math.prod(shape) * dtype.itemsize, len(content) - stream.tell()
        # numpy would allocate the declared size before it reads the numbers
        if declared != size:
            raise ValueError(f"its header declares {declared:,} bytes, but it has {size:,}")
        values = np.frombuffer(content, dtype, offset=stream.tell())
        return values.reshape(shape, order="F" if fortran_order else "C")


def new_mapped_array(path: Path, shape: tuple[int, ...], dtype: Any) -> np.memmap:
    """Create an ``.npy`` file of zeros, mapped for writing. Raise UserError if the disk is full."""
    array = np.lib.format.open_memmap(str(path), mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with file_errors(path, "cannot be written", OSError), open(path, "r+b") as file:
            try:
                # numpy makes a sparse file: a later write to it on a full disk would end in SIGBUS
                os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))
            except OSError as error:
                # a file system that cannot reserve space works as long as the disk has room
                if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
    return array


def read_member(archive: np.lib.npyio.NpzFile, path: Path, name: Optional[str]) -> np.ndarray:
    """Read one array of an ``.npz`` file; if ``name`` is None, the file must have a single array.
    Raise UserError if there is no array of that name, or the array is damaged or holds Python
    objects. ``path`` is the path of ``archive``, for messages."""
    with file_errors(path):
        if name is None and len(archive.files) == 1:
            return archive[archive.files[0]]
        if name not in archive.files:
            raise ValueError(f"must have one array, or --array NAME, but has {archive.files}")
        return archive[name]


def _read_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    major, _ = np.lib.format.read_magic(stream)
    # version 3 differs from 2 only in the encoding of field names, which plain arrays do not have
    version = "1_0" if major == 1 else "2_0"
    shape, fortran_order, dtype = getattr(np.lib.format, f"read_array_header_{version}")(stream)
    if dtype.hasobject:
        raise ValueError("Python objects")
    return shape, fortran_order, dtype


class StreamedArray:
    """Array in an ``.npz`` file, read one item ``array[i]`` after the other, since an array in an
    archive cannot be memory-mapped.

    Args:
        path: Path of the ``.npz`` file.
        name: Name of the array.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        with file_errors(path):
            archive = zipfile.ZipFile(path)
            self._stream = archive.open(f"{name}.npy")
            self.shape, fortran_order, self.dtype = _read_header(self._stream)
            # in Fortran order the numbers of an item are not contiguous and cannot be streamed
            if len(self.shape) < 2 or fortran_order:
                raise ValueError(f"{name} must be [items, D] or [items, R, D] in C order")
        self._item_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        self._next = 0

    def read(self, i: int) -> np.ndarray:
        """Return ``array[i]``, which is fast if ``i`` grows from call to call. Raise UserError if
        the archive is damaged."""
        with file_errors(self.path):
            # seeking backward in a compressed stream decompresses it again from its beginning
            self._stream.seek((i - self._next) * self._item_bytes, os.SEEK_CUR)
            content = self._stream.read(self._item_bytes)
            self._next = i + 1
            return np.frombuffer(content, self.dtype).reshape(self.shape[1:])
