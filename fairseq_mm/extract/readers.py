"""Readers, which decode an image file into an image, or a video file into clips, for a network.

:func:`decode_files` runs a reader in several processes; results have the order of the files. Each
process decodes whole files, and is ahead of the network by at most ``Reader.max_waiting`` images or
clips, so that memory does not grow with the length of a video. The processes end with the run that
started them, even if it is killed. This module does not import torch.
"""

import abc
import contextlib
import dataclasses
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection
from typing import Any, ClassVar, NamedTuple, Optional, Union

import numpy as np

from fairseq_mm.data.feature_store import Source
from fairseq_mm.errors import UserError, file_errors
from fairseq_mm.extract.clip_preprocessing import ClipPreprocessing
from fairseq_mm.extract.hashed_file import HashedFile
from fairseq_mm.extract.media import (
    IMAGES,
    MAX_PIXELS,
    VIDEOS,
    AnyImage,
    AnyMedia,
    Kind,
    MediaFile,
    read_image,
)
from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.extract.videos import VideoReader, import_av, resampled

# limits of what a process may decode ahead of the network: files, and bytes of clips
AHEAD_FILES = 8
AHEAD_BYTES = 1 << 26


class MediaEnd(NamedTuple):
    """Event at the end of a decoded file: values for the ``columns`` of :class:`Reader`, and the
    file's :class:`.Source`."""

    fields: tuple[str, ...] = ()
    source: Optional[Source] = None


class Unreadable(NamedTuple):
    """Event in place of :class:`MediaEnd` if a file cannot be read to its end: the reason, and the
    file's :class:`.Source`, or None if it cannot be opened."""

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


def decode_files(
    files: Sequence[MediaFile], reader: Reader, *, workers: int = 0
) -> Generator[Event, None, None]:
    """Decode files in ``workers`` processes (0: in this one), and yield the events of each file:
    images or clips (uint8), then one :class:`.MediaEnd` or :class:`.Unreadable`."""
    if workers < 1:
        for file in files:
            yield from reader.events(file)
        return
    processes: list[_Process] = []
    upcoming = iter(range(len(files)))
    # the process of each file that is being decoded, in the order of the files
    assigned: deque[_Process] = deque()

    def assign(process: _Process) -> None:
        number = next(upcoming, None)
        if number is not None:
            process.tasks.send((number, files[number]))
            assigned.append(process)

    try:
        # one by one: if a later start fails, `finally` ends the processes before it
        processes += (_Process(reader) for _ in range(min(workers, len(files))))
        # several files for each process, so that it goes on while the network computes
        for _ in range(AHEAD_FILES):
            for process in processes:
                assign(process)
        while assigned:
            process = assigned.popleft()
            is_end = False
            while not is_end:
                event = process.receive(files)
                is_end = isinstance(event, (MediaEnd, Unreadable))
                if is_end:
                    assign(process)
                yield event
    finally:
        for process in processes:
            process.end()


class _Process:
    """Handle by which the main process sends files to a decoding process and receives inputs."""

    def __init__(self, reader: Reader) -> None:
        # forked processes start at once, and forking is safe: they use neither torch nor a device
        method = "fork" if sys.platform.startswith("linux") else "spawn"
        context: Any = multiprocessing.get_context(method)
        their_tasks, self.tasks = context.Pipe(duplex=False)
        self.results, their_results = context.Pipe(duplex=False)
        # number of the file that the process decodes, for the message if it is killed
        self.number = context.RawValue("q", 0)
        self.process = context.Process(
            target=_run_worker, args=(their_tasks, their_results, self.number, reader), daemon=True
        )
        self.process.start()
        # the pipe ends with the process only if no other process holds its ends
        their_tasks.close()
        their_results.close()

    def receive(self, files: Sequence[MediaFile]) -> Event:
        try:
            return self.results.recv()
        except (EOFError, OSError):
            raise UserError(
                f"{files[self.number.value].name}: the process that decoded it was killed, perhaps "
                "for lack of memory. What is done is kept: run it again with fewer --workers, a "
                "smaller --max-pixels, or without this file."
            ) from None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.tasks.close()
        self.results.close()


def _run_worker(tasks: Connection, results: Connection, file_number: Any, reader: Reader) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    # a pipe holds 64 KiB by default, less than one input: the queue lets decoding go on meanwhile
    ready: queue.Queue[Optional[Event]] = queue.Queue(reader.max_waiting)

    def decode() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                file_number.value, file = tasks.recv()
                for event in reader.events(file):
                    ready.put(event)
        ready.put(None)

    threading.Thread(target=decode, daemon=True).start()
    with contextlib.suppress(OSError):
        while (event := ready.get()) is not None:
            results.send(event)


def _exit_with_parent(parent: int) -> None:
    # a process that was killed by SIGKILL cannot end its workers
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
