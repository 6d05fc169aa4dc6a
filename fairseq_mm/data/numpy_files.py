"""Reads numpy's files without unpickling and without filling the memory."""

import contextlib
import errno
import io
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from fairseq_mm.errors import UserError

# errors of numpy and zipfile for a file that is damaged or no array: numpy parses the header as
# Python and allocates the size that it declares
DAMAGE = (
    ValueError, OSError, EOFError, LookupError, TypeError, AttributeError, SyntaxError,
    MemoryError, OverflowError, RuntimeError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@contextlib.contextmanager
def _damage_of(path: Union[str, Path]) -> Iterator[None]:
    """Name the file in errors of numpy and zipfile."""
    try:
        yield
    except DAMAGE as error:
        if "pickle" in str(error) or "Python objects" in str(error):
            raise UserError(
                f"{path}: holds pickled Python objects, which are never loaded here (a pickle can "
                f"run any program). If you trust its origin, save the numbers alone once: "
                f"numpy.save('plain.npy', numpy.stack(list(numpy.load({Path(path).name!r}, "
                f"allow_pickle=True))).astype('float32'))"
            ) from None
        raise UserError(f"{path}: is no numpy file, or is cut short: {error}") from None


def load_numpy(path: Path) -> Any:
    """Open an ``.npy`` file (mapped, since it may be larger than the memory) or an ``.npz`` file.
    Raise UserError if it is damaged, is the other kind, or holds Python objects."""
    with _damage_of(path):
        content = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(content, np.ndarray) != (path.suffix == ".npy"):
            raise ValueError("a single array must be named .npy, and an archive .npz")
        return content


def read_array(content: bytes, name: str) -> np.ndarray:
    """Return the array in the content of an ``.npy`` file, which may be hostile. Raise UserError if
    the content is damaged, or holds Python objects. ``name`` names the file in messages."""
    stream = io.BytesIO(content)
    with _damage_of(name):
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
        try:
            with open(path, "r+b") as file:
                # numpy makes a sparse file: a later write to it on a full disk would end in SIGBUS
                os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))
        except OSError as error:
            # file systems that cannot reserve space: the array works as long as the disk has room
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise UserError(f"{path}: cannot be written ({error.strerror}).") from None
    return array


def read_member(archive: np.lib.npyio.NpzFile, path: Path, name: Optional[str]) -> np.ndarray:
    """Read one array of an ``.npz`` file; if ``name`` is None, the file must have a single array.
    Raise UserError if there is no array of that name, or the array is damaged or holds Python
    objects. ``path`` is the path of ``archive``, for messages."""
    names = list(archive.files)
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        wanted = "one array, or --array NAME" if name is None else f"an array {name!r}"
        raise UserError(f"{path}: must have {wanted}, but has: {', '.join(names) or 'none'}.")
    with _damage_of(path):
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
        with _damage_of(path):
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
        with _damage_of(self.path):
            # seeking backward in a compressed stream decompresses it again from its beginning
            self._stream.seek((i - self._next) * self._item_bytes, os.SEEK_CUR)
            content = self._stream.read(self._item_bytes)
            self._next = i + 1
            return np.frombuffer(content, self.dtype).reshape(self.shape[1:])
