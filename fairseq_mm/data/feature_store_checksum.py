"""Computes two checksums of a feature store: of its metadata, and of its ids and features.

libhdf5 trusts the metadata of a file: one damaged byte can crash the process or keep it busy for
ever. Therefore the writer appends a trailer to the HDF5 file, which other programs ignore. The
trailer has the position of the features, and a SHA-256 of all other bytes (metadata, offsets, ids).
The SHA-256 is checked before libhdf5 reads anything, which takes a few milliseconds. A program that
changes a store through libhdf5 cuts the trailer off; the store can still be read.

The attribute ``digest`` covers each id together with its features, so that exchanged ids are found,
and the attributes that identify the extractor. In stores of earlier versions it is named
``content_checksum`` and does not cover the extractor. It is compared by ``fairseq-mm doctor``, by
``fairseq-mm store verify``, and by every command that opens a store without a trailer.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, Callable

import h5py

from fairseq_mm.errors import UserError

# equal on all machines: a mark, the first byte of the rows, the first byte after them, the digest
_TRAILER = struct.Struct("<16sQQ32s")
_MARK = b"fairseq_mm sum 1"
_PIECE = 1 << 20
# attributes that must agree wherever features of two extractors could be mixed
EXTRACTOR_ATTRIBUTES = (
    *("extractor", "weights", "layer", "grid", "preprocessing"),
    *("frame_rate", "stride"),  # only videos have these
    "weights_digest",  # only networks of timm have one
    "decoder",  # only if Pillow did not decode the images
)


def check_metadata(path: str) -> bool:
    """Compare the metadata of a store with their checksum. Raise UserError if they differ.

    Returns:
        True if the metadata match the checksum; False if the store has no checksum of its metadata,
        such as stores of earlier versions.
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
    """Append a checksum of the metadata to an undamaged store. Raise UserError if the features lie
    in HDF5 chunks, or the file cannot be written."""
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
            # libhdf5 allocates no place for a dataset without rows
            first = end if first is None else first
            digest = _digest(file, first, first + length, end)
            file.seek(end)
            file.write(_TRAILER.pack(_MARK, first, first + length, digest))
            file.flush()
            # the writer moves the store into place next, which must not reach the disk before it
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}).") from None


def item_checksum(key: str, dim: int, dtype: str, rows: bytes) -> int:
    """Return the checksum of the features of one image or video.

    :func:`content_checksum` adds up these checksums.

    Args:
        key: Id of the image or video, without key prefix.
        dim: Feature dimension.
        dtype: Name of the dtype, such as ``float16``.
        rows: Bytes of the features.
    """
    digest = hashlib.sha256(f"{key}\0{dim}\0{dtype}\0".encode())
    digest.update(rows)
    return int.from_bytes(digest.digest(), "big")


def checksum_text(total: int) -> str:
    """Return ``total``, a sum of checksums, modulo 2^256 as 64 hexadecimal digits."""
    return f"{total % (1 << 256):064x}"


def extractor_checksum(attributes: Mapping[str, Any]) -> int:
    """Return the checksum of the attributes that must agree for features to fit together."""
    values = {name: attributes[name] for name in EXTRACTOR_ATTRIBUTES if name in attributes}
    text = json.dumps(values, sort_keys=True, default=lambda value: value.item())  # NumPy's numbers
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


def content_checksum(store: Any, progress: Callable[[Iterable[str]], Iterable[str]] = iter) -> str:
    """Return the hexadecimal checksum of a store's ids, dtype, features and extractor.

    Other attributes, the order of the ids and the layout of the file do not change the checksum.
    ``store`` is a :class:`.FeatureStore` without key prefix; ``progress`` wraps the iteration over
    its ids.
    """
    # a sum, so that shards merged in any order have the checksum of one run
    return checksum_text(
        (extractor_checksum(store.attributes) if store.has_digest else 0)
        + sum(
            item_checksum(key, store.dim, store.dtype.name, store.read(key).tobytes())
            for key in progress(store.ids)
        )
    )


def _digest(file: BinaryIO, first: int, last: int, end: int) -> bytes:
    """Hash the first ``end`` bytes of a file, but skip the features: the bytes ``first`` to
    ``last``."""
    # the positions are hashed too: the same bytes around other rows must not match
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
