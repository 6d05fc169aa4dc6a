"""Records size, time and SHA-256 of the files from which features were computed.

The records are saved in the feature store, to notice later that a file has changed. Three optional
datasets of the HDF5 file hold one record per item (image or video). Earlier versions of the package
ignore these datasets, and write stores without them.

==================  ===============  ===================================================
dataset             shape            content
==================  ===============  ===================================================
``source_sizes``    ``[items]``      int64: size of the file in bytes; -1 without record
``source_times``    ``[items]``      int64: time of its last change, in nanoseconds
``source_digests``  ``[items, 32]``  uint8: SHA-256 of its bytes
==================  ===============  ===================================================
"""

import array
from typing import NamedTuple, Optional

import h5py
import numpy as np

from fairseq_mm.data.feature_store_file import check_storage, get_own_dataset
from fairseq_mm.errors import UserError

DIGEST_BYTES = 32
_MEMBERS: dict[str, tuple[tuple[int, ...], type]] = {
    "source_sizes": ((), np.int64),
    "source_times": ((), np.int64),
    "source_digests": ((DIGEST_BYTES,), np.uint8),
}
_NO_SIZE = -1


class Source(NamedTuple):
    """Record of the image or video file from which features were computed.

    Attributes:
        size: Size of the file, or of the member of an archive, in bytes.
        time: Time of the last change of the file, or of the archive, in nanoseconds.
        digest: SHA-256 of the bytes of the file or member.
    """

    size: int
    time: int
    digest: bytes


class SourceTable:
    """Table with one :class:`Source` per image or video of a feature store, in order."""

    def __init__(self) -> None:
        self._sizes = array.array("q")
        self._times = array.array("q")
        self._digests = bytearray()

    def __getitem__(self, i: int) -> Optional[Source]:
        if i >= len(self._sizes) or self._sizes[i] == _NO_SIZE:
            return None
        digest = bytes(self._digests[i * DIGEST_BYTES : (i + 1) * DIGEST_BYTES])
        return Source(self._sizes[i], self._times[i], digest)

    def append(self, source: Optional[Source]) -> None:
        size, time, digest = source or Source(_NO_SIZE, 0, bytes(DIGEST_BYTES))
        # NamedTuples would take some 200 bytes an item, these arrays take 48
        self._sizes.append(size)
        self._times.append(time)
        self._digests += digest

    def count(self) -> int:
        """Return the number of images or videos whose files are recorded."""
        return len(self._sizes) - self._sizes.count(_NO_SIZE)

    def write(self, file: h5py.File) -> None:
        """Write the records to an HDF5 file, as datasets ``source_sizes``, ``source_times`` and
        ``source_digests``; write nothing if there is no record."""
        if not self.count():
            return
        file["source_sizes"] = np.frombuffer(self._sizes, np.int64)
        file["source_times"] = np.frombuffer(self._times, np.int64)
        digests = np.frombuffer(bytes(self._digests), np.uint8)
        file["source_digests"] = digests.reshape(-1, DIGEST_BYTES)


def read_sources(path: str, file: h5py.File, items: int, size: int) -> SourceTable:
    """Read the records of the files from which the features of a store were computed.

    The table is empty if the store has no records.

    Args:
        path: Path of the store, for messages.
        file: The store's HDF5 file, opened.
        items: Number of images or videos in the store.
        size: Size of the HDF5 file in bytes.
    """
    table = SourceTable()
    if not any(file.id.links.exists(name.encode()) for name in _MEMBERS):
        return table
    values = []
    for name, (rest, dtype) in _MEMBERS.items():
        if not file.id.links.exists(name.encode()):
            raise UserError(f"{path}: must have all of {', '.join(_MEMBERS)}, but lacks {name}.")
        dataset = get_own_dataset(path, file, name)
        check_storage(path, name, dataset, size)
        if dataset.shape != (items, *rest) or dataset.dtype != dtype:
            raise UserError(
                f"{path}: `{name}` must be {[items, *rest]} of {np.dtype(dtype)}, but is "
                f"{list(dataset.shape)} of {dataset.dtype}."
            )
        values.append(dataset[...].tobytes())
    table._sizes.frombytes(values[0])
    table._times.frombytes(values[1])
    table._digests += values[2]
    return table
