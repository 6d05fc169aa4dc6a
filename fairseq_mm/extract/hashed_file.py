"""Records size, time and SHA-256 of image and video files while the files are decoded."""

import hashlib
from typing import BinaryIO, Optional, Union

from fairseq_mm.data.feature_store import Source
from fairseq_mm.errors import UserError, file_errors
from fairseq_mm.extract.media import MediaFile

# files up to this size are read once for both digest and decoding; videos are often larger
MAX_BYTES_IN_MEMORY = 1 << 26
_PIECE = 1 << 20


class HashedFile:
    """Image or video file that is open for reading. Read ``content`` (the bytes, or the file if it
    is large); then :meth:`get_source` returns size, time of last change and SHA-256."""

    def __init__(self, file: MediaFile) -> None:
        self._file = file
        with file_errors():
            self._size_and_time = file.size_and_time()
            self._stream = file.open()
            self.content: Union[bytes, BinaryIO] = self._stream
            if self._size_and_time[0] <= MAX_BYTES_IN_MEMORY:
                # one byte more than the size, to notice a file that grows
                self.content = self._stream.read(self._size_and_time[0] + 1)

    def get_source(self) -> Source:
        """Return the record of the file; raise UserError if it was changed since it was opened."""
        has_changed = False
        with file_errors():
            if isinstance(self.content, bytes):
                digest = hashlib.sha256(self.content).digest()
                has_changed = len(self.content) != self._size_and_time[0]
            else:
                # read once more from the beginning: a decoder of videos reads out of order
                digest = _digest(self._stream)
            # the decoded content would be neither the old nor the new one
            if has_changed or self._file.size_and_time() != self._size_and_time:
                raise UserError("was changed while it was read.")
        return Source(*self._size_and_time, digest)

    def __enter__(self) -> "HashedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def _digest(stream: BinaryIO) -> bytes:
    digest = hashlib.sha256()
    stream.seek(0)
    while piece := stream.read(_PIECE):
        digest.update(piece)
    return digest.digest()


def describe_change(
    file: MediaFile, source: Source, *, reads_always: bool = False
) -> Optional[str]:
    """Say how a file differs from its record ``source``; return None if its bytes are the same. The
    SHA-256 is compared only if the time has changed, or with ``reads_always``."""
    try:
        with file_errors(problem="it cannot be read any more"):
            size, time = file.size_and_time()
            if size != source.size:
                return f"it had {source.size:,} bytes, and has {size:,}"
            if time == source.time and not reads_always:
                return None
            with file.open() as stream:
                return None if _digest(stream) == source.digest else "its content is another"
    except UserError as error:
        return str(error).rstrip(".")
