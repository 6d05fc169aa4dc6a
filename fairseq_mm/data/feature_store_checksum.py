"""A checksum of what a feature store holds besides its rows, checked before libhdf5 reads it.

libhdf5 trusts the metadata of a file: one damaged byte can end the process or keep it busy for
ever. So the writer appends a trailer behind the HDF5 file, which other programs do not see: where
the rows lie, and a SHA-256 of all other bytes (metadata, offsets, ids), which takes a few
milliseconds. Rows are not part of it: ``fairseq-mm store verify`` reads them. A program that
changes a store by libhdf5 cuts the trailer off; such a store is read as one that never had it.
"""

import hashlib
import os
import struct
from typing import BinaryIO

import h5py

from fairseq_mm.errors import UserError

# a mark, the first byte of the rows and the one behind them, the digest
_TRAILER = struct.Struct("<16sQQ32s")
_MARK = b"fairseq_mm sum 1"
_PIECE = 1 << 20


def check_metadata(path: str) -> bool:
    """Whether the store has a checksum; those of older versions have none.

    Raises:
        UserError: if its metadata do not match it, or the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END) - _TRAILER.size
            file.seek(max(0, end))
            trailer = file.read(_TRAILER.size)
            if end < 0 or not trailer.startswith(_MARK):
                return False
            _, first, last, digest = _TRAILER.unpack(trailer)
            if not first <= last <= end or _digest(file, first, last, end) != digest:
                raise UserError(
                    f"{path}: does not match the checksum of its metadata: the file is damaged. "
                    "Copy it anew from where it is whole, or make it again."
                )
    except FileNotFoundError:
        raise UserError(f"{path}: feature store not found.") from None
    except OSError as error:
        raise UserError(f"{path}: feature store cannot be opened: {error.strerror}.") from None
    return True


def add_checksum(path: str) -> None:
    """Appends a checksum to a store that is known to be whole.

    Raises:
        UserError: if its rows lie in chunks, or the file cannot be written.
    """
    with h5py.File(path, "r", locking=False) as file:
        features = file["features"]
        first, length = features.id.get_offset(), features.nbytes
        if first is None and length:
            raise UserError(
                f"{path}: rows in chunks get no checksum: `fairseq-mm store convert` writes a "
                "store that has one."
            )
    try:
        with open(path, "r+b") as file:
            end = file.seek(0, os.SEEK_END)
            first = end if first is None else first
            digest = _digest(file, first, first + length, end)
            file.seek(end)
            file.write(_TRAILER.pack(_MARK, first, first + length, digest))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}).") from None


def _digest(file: BinaryIO, first: int, last: int, end: int) -> bytes:
    """Of the bytes before ``first``, and of those from ``last`` to ``end``."""
    digest = hashlib.sha256(struct.pack("<QQQ", first, last, end))
    for start, stop in ((0, first), (last, end)):
        file.seek(start)
        while start < stop:
            piece = file.read(min(_PIECE, stop - start))
            if not piece:
                break
            digest.update(piece)
            start += len(piece)
    return digest.digest()
