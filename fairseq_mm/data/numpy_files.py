"""Reads numpy's files without unpickling and without filling the memory."""

import errno
import os
from pathlib import Path
from typing import Any, Optional

import numpy as np

from fairseq_mm.errors import file_errors


def load_numpy(path: Path) -> Any:
    """Open an ``.npy`` file (memory-mapped, since it may be larger than the memory) or an ``.npz``
    file. Raise UserError if it is damaged, has the other format, or holds Python objects."""
    with file_errors(path):
        content = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(content, np.ndarray) != (path.suffix == ".npy"):
            raise ValueError("a single array must be named .npy, and an archive .npz")
        return content


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
