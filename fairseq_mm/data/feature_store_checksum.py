"""Two checksums of a feature store: one of its metadata, one of its ids and rows together.

libhdf5 trusts the metadata of a file: one damaged byte can end the process or keep it busy for
ever. So the writer appends a trailer behind the HDF5 file, which other programs do not see: where
the rows lie, and a SHA-256 of all other bytes (metadata, offsets, ids). Checking it takes a few
milliseconds, before libhdf5 reads anything. A program that changes a store by libhdf5 cuts the
trailer off; the store is still read.

The attribute ``content_checksum`` covers each id together with its rows, so that exchanged ids or
rows are found. ``fairseq-mm doctor`` and ``store verify`` compare it, and so does every command
that opens a store whose trailer was cut off.
"""

import hashlib
import os
import struct
from collections.abc import Iterable
from typing import Any, BinaryIO, Callable

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


def item_checksum(key: str, dim: int, dtype: str, rows: bytes) -> int:
    """Return one item's share of :func:`content_checksum`."""
    digest = hashlib.sha256(f"{key}\0{dim}\0{dtype}\0".encode())
    digest.update(rows)
    return int.from_bytes(digest.digest(), "big")


def checksum_text(total: int) -> str:
    """Return the sum of all items' checksums as 64 hexadecimal digits."""
    return f"{total % (1 << 256):064x}"


def content_checksum(store: Any, progress: Callable[[Iterable[str]], Iterable[str]] = iter) -> str:
    """Return the hexadecimal checksum of a store's ids, dtype and rows.

    It is the sum, modulo 2^256, of the items' SHA-256, so that the order of items, attributes and
    the file's layout do not matter: shards merged in any order give the checksum of one run.

    Args:
        store: Feature store, opened without a prefix.
        progress: Wraps the iteration over the ids.
    """
    return checksum_text(
        sum(
            item_checksum(key, store.dim, store.dtype.name, store.read(key).tobytes())
            for key in progress(store.ids)
        )
    )


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
