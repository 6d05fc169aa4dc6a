"""Reads numpy's files without unpickling and without filling the memory."""

import errno
import io
import math
import os
import tokenize
import zipfile
import zlib
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
# an array of an archive is read whole, and a few compressed bytes can become any number of bytes
MAX_MEMBER_BYTES = 1 << 32


def load_numpy(path: Path) -> Union[np.ndarray, np.lib.npyio.NpzFile]:
    """Open an ``.npy`` file (mapped, since it may be larger than the memory) or an ``.npz`` file.
    Raise UserError if it is damaged, or holds Python objects."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except DAMAGE as error:
        raise UserError(_describe_failure(path, error)) from None


def read_array(content: bytes, name: str) -> np.ndarray:
    """Return the array in the content of an ``.npy`` file. Raise UserError if the content is
    damaged, or holds Python objects. ``name`` names the file in messages."""
    stream = io.BytesIO(content)
    try:
        shape, fortran_order, dtype = _read_header(stream)
        if dtype.hasobject:
            raise ValueError("Python objects")
        declared, size = math.prod(shape) * dtype.itemsize, len(content) - stream.tell()
        # numpy would allocate the declared size before it reads the numbers
        if declared != size:
            raise ValueError(f"its header declares {declared:,} bytes, but it has {size:,}")
        values = np.frombuffer(content, dtype, offset=stream.tell())
        return values.reshape(shape, order="F" if fortran_order else "C")
    except DAMAGE as error:
        raise UserError(_describe_failure(Path(name), error)) from None


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
    objects.

    ``path`` is the path of ``archive``, for messages.
    """
    names = list(archive.files)
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        wanted = "one array, or --array NAME" if name is None else f"an array {name!r}"
        raise UserError(f"{path}: must have {wanted}, but has: {', '.join(names) or 'none'}.")
    try:
        _check_member(archive, name)
        return archive[name]
    except DAMAGE as error:
        raise UserError(_describe_failure(path, error)) from None


def _check_member(archive: np.lib.npyio.NpzFile, name: str) -> None:
    """Raise ValueError if the archive is too small for the array that the header of the member
    ``name`` declares, before numpy allocates the array."""
    zip_file = archive.zip
    assert zip_file is not None  # only the caller closes the archive
    # numpy lists `x.npy` as `x`, but keeps the names of members without this suffix
    member = name if name in zip_file.namelist() else f"{name}.npy"
    size = zip_file.getinfo(member).file_size
    with zip_file.open(member) as stream:
        shape, _, dtype = _read_header(stream)
    declared = math.prod(shape) * dtype.itemsize
    # objects are pickled, so their size says nothing; numpy refuses them later
    if declared > min(size, MAX_MEMBER_BYTES) and not dtype.hasobject:
        raise ValueError(f"{name} declares {declared:,} bytes, and has {size:,}")


def _read_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    major, _ = np.lib.format.read_magic(stream)
    if major == 1:
        return np.lib.format.read_array_header_1_0(stream)
    # version 3 differs from 2 only in the encoding of field names, which plain arrays do not have
    return np.lib.format.read_array_header_2_0(stream)


def _describe_failure(path: Path, error: Exception) -> str:
    if "pickle" in str(error) or "Python objects" in str(error):
        return (
            f"{path}: holds pickled Python objects, which are never loaded here (a pickle can run "
            f"any program). If you trust its origin, save the numbers alone once: "
            f"numpy.save('plain.npy', numpy.stack(list(numpy.load({path.name!r}, "
            f"allow_pickle=True))).astype('float32'))"
        )
    return f"{path}: is no numpy file, or is cut short: {error}"


class StreamedArray:
    """Array in an ``.npz`` file, read one item ``array[i]`` after the other, since an array in an
    archive cannot be memory-mapped.

    Args:
        path: Path of the ``.npz`` file.
        name: Name of the array.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.where = f"{path}: {name}"
        try:
            self._archive = zipfile.ZipFile(path)
            self._stream = self._archive.open(f"{name}.npy")
            self.shape, fortran_order, self.dtype = _read_header(self._stream)
        except DAMAGE as error:
            raise UserError(_describe_failure(path, error)) from None
        if self.dtype.hasobject:
            raise UserError(_describe_failure(path, ValueError("Python objects")))
        # in Fortran order the numbers of an item are not contiguous and cannot be streamed
        if len(self.shape) < 2 or fortran_order:
            raise UserError(
                f"{self.where}: must be [items, D] or [items, R, D] in C order, but is "
                f"{list(self.shape)} in {'Fortran' if fortran_order else 'C'} order."
            )
        self._item_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        size = self._archive.getinfo(f"{name}.npy").file_size
        if self.shape[0] * self._item_bytes > size or self._item_bytes > MAX_MEMBER_BYTES:
            raise UserError(
                f"{self.where}: declares {list(self.shape)} of {self.dtype}, but has {size:,} "
                "bytes: it is damaged."
            )
        self._next = 0

    def read(self, i: int) -> np.ndarray:
        """Return ``array[i]``, which is fast if ``i`` grows from call to call. Raise UserError if
        the archive is damaged."""
        try:
            # seeking backward in a compressed stream decompresses it again from its beginning
            self._stream.seek((i - self._next) * self._item_bytes, os.SEEK_CUR)
            content = self._stream.read(self._item_bytes)
            if len(content) < self._item_bytes:
                raise EOFError(f"cut short at item {i} of {self.shape[0]}")
        except DAMAGE as error:
            raise UserError(
                f"{self.where}: is damaged: {error}. Replace the file, and delete the partial "
                f"store to begin anew."
            ) from None
        self._next = i + 1
        return np.frombuffer(content, self.dtype).reshape(self.shape[1:])
