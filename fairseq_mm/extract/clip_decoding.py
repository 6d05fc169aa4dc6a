"""Clips of many videos, in their order, decoded by one process or several.

Each process decodes whole videos and is ahead of the network by at most ``AHEAD_BYTES`` of clips,
so memory does not grow with the length of a video. This module does not import torch.
"""

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.extract.clip_preprocessing import ClipPreprocessing
from fairseq_mm.extract.decoding_process import begin_worker, process_context
from fairseq_mm.extract.images import MAX_PIXELS
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.extract.videos import (
    AnyVideo,
    VideoReader,
    frames_as_they_come,
    import_av,
    resampled,
)

# how far each process may be ahead: in clips, and in videos
AHEAD_BYTES = 1 << 26
AHEAD_VIDEOS = 4


class Decoding(NamedTuple):
    """How videos are decoded.

    Attributes:
        preprocessing: from frames to clips.
        keep_damaged: take what can be decoded of a truncated or damaged video.
        max_pixels: larger frames are refused.
    """

    preprocessing: ClipPreprocessing
    keep_damaged: bool = False
    max_pixels: int = MAX_PIXELS


class VideoEnd(NamedTuple):
    """What is known of a video when it has been decoded.

    Attributes:
        num_frames: as they stand in the file.
        frame_rate: frames a second, on average.
        seconds: its length.
        damage: what is wrong with it; empty of a sound one.
    """

    num_frames: int
    frame_rate: float
    seconds: float
    damage: str


# a clip [frames, height, width, 3] uint8; the end of a video; why a video cannot be read
Event = Union[np.ndarray, VideoEnd, str]


def decode_video(video: AnyVideo, decoding: Decoding) -> Generator[Event, None, None]:
    """The clips of one video, then its end or the reason why it cannot be read (further)."""
    reader = VideoReader(video, keep_damaged=decoding.keep_damaged, max_pixels=decoding.max_pixels)
    fps = decoding.preprocessing.fps
    try:
        frames = reader.frames()
        images = resampled(frames, fps) if fps else frames_as_they_come(frames)
        yield from decoding.preprocessing.clips(images)
    except UserError as error:
        yield str(error)
    except MemoryError:
        yield "not enough memory to decode it."
    except Exception as error:  # FFmpeg fails in many ways on a broken file
        yield f"cannot be decoded: {str(error) or type(error).__name__}"
    else:
        yield VideoEnd(reader.num_frames, reader.frame_rate, reader.seconds, reader.damage)


def decode_videos(
    videos: Sequence[MediaFile], decoding: Decoding, *, workers: int = 0
) -> Generator[Event, None, None]:
    """Events of all videos, one video after the other.

    Args:
        videos: entries of a list.
        decoding: how.
        workers: processes; 0 decodes in this one.

    Raises:
        UserError: if PyAV is missing, or a process was killed.
    """
    import_av()
    if workers < 1 or not videos:
        for video in videos:
            yield from decode_video(video, decoding)
        return
    processes: list[_Process] = []
    upcoming = iter(range(len(videos)))
    under_way: deque[_Process] = deque()  # of each video that is not through yet

    def assign(process: _Process) -> None:
        number = next(upcoming, None)
        if number is not None:
            process.tasks.send((number, videos[number]))
            under_way.append(process)

    try:
        processes += (_Process(decoding) for _ in range(min(workers, len(videos))))
        for _ in range(AHEAD_VIDEOS):
            for process in processes:
                assign(process)
        while under_way:
            process = under_way.popleft()
            is_end = False
            while not is_end:
                event = process.receive(videos)
                is_end = not isinstance(event, np.ndarray)
                if is_end:
                    assign(process)
                yield event
    finally:
        for process in processes:
            process.end()


class _Process:
    """A decoding process, seen from the main one."""

    def __init__(self, decoding: Decoding) -> None:
        context = process_context()
        their_tasks, self.tasks = context.Pipe(duplex=False)
        self.results, their_results = context.Pipe(duplex=False)
        # what it is at, for the case that it dies of it
        self.number = context.RawValue("q", 0)
        self.process = context.Process(
            target=_work, args=(their_tasks, their_results, self.number, decoding), daemon=True
        )
        self.process.start()
        # so that the death of the process ends the pipe
        their_tasks.close()
        their_results.close()

    def receive(self, videos: Sequence[MediaFile]) -> Event:
        try:
            return self.results.recv()
        except (EOFError, OSError):
            video = videos[self.number.value]
            raise UserError(
                f"{video.name}: the process that decoded it was killed, perhaps for lack of "
                "memory. What is done is kept: run it again with fewer --workers, or without this "
                "video."
            ) from None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.tasks.close()
        self.results.close()


def _work(tasks: Connection, results: Connection, place: Any, decoding: Decoding) -> None:
    begin_worker()
    clip_bytes = int(np.prod(decoding.preprocessing.clip_shape))
    ready: queue.Queue[Optional[Event]] = queue.Queue(max(2, AHEAD_BYTES // clip_bytes))

    def decode() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                place.value, video = tasks.recv()
                for event in decode_video(video, decoding):
                    ready.put(event)
        ready.put(None)

    threading.Thread(target=decode, daemon=True).start()
    with contextlib.suppress(OSError):
        while (event := ready.get()) is not None:
            results.send(event)
