"""Readers, which decode an image file into an image, or a video file into clips, for a network.

Readers are sent to the decoding processes, so this module does not import torch.
"""

import abc
import dataclasses
from collections.abc import Generator
from typing import Any, ClassVar, NamedTuple, Optional, Union

import numpy as np

from fairseq_mm.data.feature_store import Source
from fairseq_mm.errors import UserError, file_errors
from fairseq_mm.extract.clip_preprocessing import ClipPreprocessing
from fairseq_mm.extract.hashed_file import HashedFile
from fairseq_mm.extract.images import AnyImage, read_image
from fairseq_mm.extract.media_list import IMAGES, MAX_PIXELS, VIDEOS, AnyMedia, Kind, MediaFile
from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.extract.videos import VideoReader, import_av, resampled

# limits of what a process may decode ahead of the network: files, and bytes of clips
AHEAD_FILES = 8
AHEAD_BYTES = 1 << 26


class MediaEnd(NamedTuple):
    """Event at the end of a decoded file: values for :class:`Reader`'s ``columns``, and the record
    of the file."""

    fields: tuple[str, ...] = ()
    source: Optional[Source] = None


class Unreadable(NamedTuple):
    """Event in place of :class:`MediaEnd` if a file cannot be read to its end, with the reason, and
    the record of the file unless it cannot be opened."""

    reason: str
    source: Optional[Source] = None


# an input of the network (pixels in uint8), or the end of a file
Event = Any


class Reader(abc.ABC):
    """Decoder of one kind of files, which yields images or clips as inputs of a network.

    Attributes:
        inputs_are: Plural noun for the network's inputs in messages, such as ``clips``.
        columns: Names of the values that are recorded for each file in a table next to the store.
        inputs_per_file: Number of inputs in a file; None if it is known only after decoding.
        max_waiting: Number of inputs that a process may decode ahead of the network.
    """

    kind: ClassVar[Kind]
    inputs_are: ClassVar[str]
    columns: ClassVar[tuple[str, ...]] = ()
    inputs_per_file: ClassVar[Optional[int]] = None

    @property
    @abc.abstractmethod
    def max_waiting(self) -> int: ...

    @abc.abstractmethod
    def _decode(self, media: Any) -> Generator[Any, None, MediaEnd]: ...

    def inputs(self, media: Any, name: str = "") -> Generator[Any, None, MediaEnd]:
        """Decode a file (path, bytes, open file or :class:`.MediaFile`), and yield its inputs for
        the network as uint8 arrays. Messages of UserErrors begin with ``name``."""
        try:
            with file_errors():  # decoders fail in many ways
                return (yield from self._decode(media))
        except UserError as error:
            raise UserError(f"{name}: {error}" if name else str(error)) from error

    def events(self, file: MediaFile) -> Generator[Event, None, None]:
        """Yield the images or clips of a file, then one :class:`MediaEnd` or
        :class:`Unreadable`."""
        end: Union[MediaEnd, Unreadable]
        try:
            with HashedFile(file) as hashed:
                try:
                    end = yield from self.inputs(hashed.content)
                except UserError as error:
                    end = Unreadable(str(error))
                # also of an unreadable file: a later run tries it again if its bytes have changed
                end = end._replace(source=hashed.get_source())
        except UserError as error:
            end = Unreadable(str(error))
        yield end


@dataclasses.dataclass(frozen=True)
class ImageReader(Reader):
    """Reader of images ``[height, width, 3]``; :func:`.read_image` explains ``max_pixels``."""

    preprocessing: Preprocessing
    max_pixels: int = MAX_PIXELS

    kind = IMAGES
    inputs_are = "images"
    inputs_per_file = 1
    # an image and its end are two events
    max_waiting = 2 * AHEAD_FILES

    def _decode(self, media: AnyImage) -> Generator[Any, None, MediaEnd]:
        yield self.preprocessing.apply(read_image(media, max_pixels=self.max_pixels))
        return MediaEnd()


@dataclasses.dataclass(frozen=True)
class ClipReader(Reader):
    """Reader of videos, as clips ``[frames, height, width, 3]``; see :class:`.VideoReader`."""

    preprocessing: ClipPreprocessing
    max_pixels: int = MAX_PIXELS

    kind = VIDEOS
    inputs_are = "clips"
    columns = ("frames", "frame_rate", "seconds")

    def __post_init__(self) -> None:
        import_av()  # here, so that a missing PyAV ends the run before any process is started

    @property
    def max_waiting(self) -> int:
        # by bytes, since clips differ in size; two are a clip and the end of its file
        return max(2, AHEAD_BYTES // int(np.prod(self.preprocessing.input_shape)))

    def _decode(self, media: AnyMedia) -> Generator[np.ndarray, None, MediaEnd]:
        video = VideoReader(media, max_pixels=self.max_pixels)
        frames, fps = video.frames(), self.preprocessing.fps
        images = resampled(frames, fps) if fps else (image for _, _, image in frames)
        yield from self.preprocessing.clips(images)
        rate, seconds = f"{video.frame_rate:.6g}", f"{video.seconds:.3f}"
        return MediaEnd((str(video.num_frames), rate, seconds))
