"""The long run from a list of videos to a feature store: clips in batches, resuming.

The clips of all videos make one long sequence, in the order of the list, and batches begin at
fixed places of it: so the clips of several videos share a batch. Where a run continues, how many
places the finished videos take is known from the store; their places in the first batch are filled
with black. An interrupted video is begun anew. So a clip meets the same arithmetic in an
interrupted run as in one without interruption, and the two stores have equal bits.

Of the videos, only the clips of a batch, what the decoding processes are ahead, and the rows of the
video under way are held: memory does not grow with the videos' length, but for 8 KB a clip of 16
frames and 2048 channels (46 MB an hour of video).
"""

import contextlib
import os
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple, Optional

import numpy as np
from tqdm import tqdm

from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError
from fairseq_mm.extract.clip_decoding import Decoding, VideoEnd, decode_videos
from fairseq_mm.extract.images import MAX_PIXELS
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.extract.run_files import (
    check_finished,
    check_same_items,
    write_rows,
    write_unreadable,
)
from fairseq_mm.extract.video_extractor import VideoExtractor

VIDEO_COLUMNS = ("id", "clips", "frames", "frame_rate", "seconds", "damage")


class VideoSummary(NamedTuple):
    """What a run did.

    Attributes:
        num_videos: in the store.
        num_unreadable: listed, not in the store.
        num_damaged: in the store, as far as they can be decoded; of this run.
        num_extracted: videos of this run.
        num_clips: computed in this run, with those of videos that turned out to be damaged.
        seconds: of this run, from the first video on.
        seconds_waiting: of these, for decoded clips.
        seconds_network: of these, for the network.
        was_finished: the store was complete before.
    """

    num_videos: int
    num_unreadable: int
    num_damaged: int = 0
    num_extracted: int = 0
    num_clips: int = 0
    seconds: float = 0.0
    seconds_waiting: float = 0.0
    seconds_network: float = 0.0
    was_finished: bool = False


def videos_path(output: str) -> str:
    """Where the videos of a store are described (``VIDEO_COLUMNS``, between tabs)."""
    return output + ".videos.tsv"


def extract_videos_to_store(
    extractor: VideoExtractor,
    videos: Sequence[MediaFile],
    output: str,
    *,
    batch_size: int = 8,
    workers: int = 1,
    dtype: str = "float16",
    keep_damaged: bool = False,
    max_pixels: int = MAX_PIXELS,
    overwrite: bool = False,
    strict: bool = False,
    show_progress: bool = False,
) -> VideoSummary:
    """Writes the features of all videos into one feature store, or finishes what was begun.

    Args:
        extractor: network and preprocessing.
        videos: in the order of the store.
        output: the store; ``output.partial`` while it grows, ``output.videos.tsv`` has frames, rate
            and length of each video, ``output.unreadable.tsv`` lists what could not be read.
        batch_size: clips that the network gets at a time.
        workers: decoding processes; 0 decodes in this one.
        dtype: of the store.
        keep_damaged: take what can be decoded of truncated and damaged videos.
        max_pixels: larger frames are refused.
        overwrite: replace a finished store.
        strict: an unreadable video ends the run.
        show_progress: a bar on stderr.

    Raises:
        UserError: if the store exists and is not what would be written, no video can be read, or
            a video cannot and ``strict``.
    """
    if os.path.exists(output) and not overwrite:
        found = check_finished(extractor.identity, videos, output, dtype, noun="videos")
        return VideoSummary(*found, was_finished=True)
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(
            FeatureStoreWriter(
                output,
                dim=extractor.dim,
                dtype=dtype,
                attributes=extractor.identity,
                overwrite=overwrite,
            )
        )
        check_same_items(writer.done, videos, output, noun="videos")
        journal = stack.enter_context(_VideoJournal(writer))
        run = _Run(
            extractor,
            Decoding(extractor.preprocessing, keep_damaged, max_pixels),
            batch_size=batch_size,
            strict=strict,
            bar=stack.enter_context(_progress_bar(len(videos), len(writer.done), show_progress)),
        )
        finished = run.finished_videos(videos, journal.clips, workers)
        stack.enter_context(contextlib.closing(finished))  # ends the processes
        for video, rows, end in finished:
            journal.note(video.key, len(rows), end)
            writer.append(video.key, rows)
            run.show(len(writer.done))
        if videos and not writer.done:
            name, reason = run.unreadable[0]
            raise UserError(
                f"none of the {len(videos)} videos can be read; the first is {name}: {reason}"
            )
        write_unreadable(output, run.unreadable)
        write_rows(videos_path(output), [VIDEO_COLUMNS, *journal.rows])
        writer.finish()
        num_videos = len(writer.done)
    return VideoSummary(
        num_videos=num_videos,
        num_unreadable=len(run.unreadable),
        num_damaged=run.num_damaged,
        num_extracted=run.num_extracted,
        num_clips=run.num_clips,
        seconds=time.perf_counter() - run.began,
        seconds_waiting=run.seconds_waiting,
        seconds_network=run.seconds_network,
    )


def _progress_bar(total: int, initial: int, is_shown: bool) -> tqdm:
    return tqdm(
        total=total,
        initial=initial,
        unit=" videos",
        disable=not is_shown,
        mininterval=0.5 if sys.stderr.isatty() else 10,
        dynamic_ncols=True,
    )


class _VideoJournal:
    """What is known of the finished videos, kept in the partial folder until the store is whole.

    A line is written before its video is appended to the store; lines of videos that are not in the
    store, or that were torn, are dropped when a run continues.

    Args:
        writer: of the store.

    Attributes:
        rows: fields of ``VIDEO_COLUMNS``.
    """

    def __init__(self, writer: FeatureStoreWriter) -> None:
        self.path = os.path.join(writer.partial_path, "videos.tsv")
        rows = [line.rstrip("\n").split("\t") for line in self._lines() if line.endswith("\n")]
        self.rows = [row for row in rows if len(row) == len(VIDEO_COLUMNS)]
        latest = {row[0]: row for row in self.rows if row[0] in writer.done}
        self.rows = list(latest.values())
        lost = writer.done.difference(latest)
        if lost:
            raise UserError(
                f"{self.path}: lacks {min(lost)!r}, which stands in the store. Delete "
                f"{writer.partial_path} to begin anew."
            )
        write_rows(self.path, self.rows)
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115

    def _lines(self) -> list[str]:
        try:
            with open(self.path, encoding="utf-8", newline="\n") as file:
                return list(file)
        except FileNotFoundError:
            return []

    @property
    def clips(self) -> dict[str, int]:
        """How many clips each finished video has."""
        return {row[0]: int(row[1]) for row in self.rows}

    def note(self, key: str, num_clips: int, end: VideoEnd) -> None:
        row = [
            key,
            str(num_clips),
            str(end.num_frames),
            f"{end.frame_rate:.6g}",
            f"{end.seconds:.3f}",
            " ".join(end.damage.split()),
        ]
        self.rows.append(row)
        self._file.write("\t".join(row) + "\n")
        self._file.flush()

    def __enter__(self) -> "_VideoJournal":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class _UnderWay:
    """A video whose clips are being computed."""

    def __init__(self, video: MediaFile) -> None:
        self.video = video
        self.rows: list[np.ndarray] = []
        self.num_clips = 0  # decoded so far
        self.end: Optional[VideoEnd] = None


class _Run:
    """The inner loop, and what it counts."""

    def __init__(
        self,
        extractor: VideoExtractor,
        decoding: Decoding,
        *,
        batch_size: int,
        strict: bool,
        bar: tqdm,
    ) -> None:
        self.extractor = extractor
        self.decoding = decoding
        self.batch_size = batch_size
        self.strict = strict
        self.bar = bar
        self.unreadable: list[tuple[str, str]] = []
        self.num_damaged = self.num_extracted = self.num_clips = 0
        self.seconds_waiting = self.seconds_network = 0.0
        self.began = time.perf_counter()
        self._batch = np.zeros((batch_size, *extractor.preprocessing.clip_shape), dtype=np.uint8)
        self._owners: list[Optional[_UnderWay]] = []  # of each place of the batch

    def finished_videos(
        self, videos: Sequence[MediaFile], done: dict[str, int], workers: int
    ) -> Generator[tuple[MediaFile, np.ndarray, VideoEnd], None, None]:
        """Each video that is not done, when its last clip has been computed.

        Args:
            videos: all of them.
            done: clips of those that stand in the store.
            workers: decoding processes.
        """
        left = [video for video in videos if video.key not in done]
        events = decode_videos(left, self.decoding, workers=workers)
        under_way: list[_UnderWay] = []
        with contextlib.closing(events):
            for video in videos:
                if video.key in done:
                    for _ in range(done[video.key]):
                        yield from self._take_place(None, under_way)
                    continue
                current = _UnderWay(video)
                under_way.append(current)
                reason = ""
                while current.end is None and not reason:
                    began = time.perf_counter()
                    event = next(events)
                    self.seconds_waiting += time.perf_counter() - began
                    if isinstance(event, np.ndarray):
                        self._batch[len(self._owners)] = event
                        current.num_clips += 1
                        yield from self._take_place(current, under_way)
                    elif isinstance(event, str):
                        reason = event
                    else:
                        current.end = event
                if reason:
                    under_way.remove(current)
                    self._note_unreadable(video, reason)
                yield from self._complete(under_way)
            self._compute()
            yield from self._complete(under_way)

    def _take_place(
        self, owner: Optional[_UnderWay], under_way: list[_UnderWay]
    ) -> Iterator[tuple[MediaFile, np.ndarray, VideoEnd]]:
        self._owners.append(owner)
        if len(self._owners) == self.batch_size:
            self._compute()
            yield from self._complete(under_way)

    def _compute(self) -> None:
        """Runs the network on the batch, unless all of its clips were computed before."""
        owners, self._owners = self._owners, []
        if any(owners):
            began = time.perf_counter()
            rows = self.extractor.rows(self._batch[: len(owners)])
            self.seconds_network += time.perf_counter() - began
            for owner, row in zip(owners, rows):
                if owner is not None:
                    owner.rows.append(row)
                    self.num_clips += 1
            self.bar.set_postfix(clips=self.num_clips, unreadable=len(self.unreadable))
        self._batch[:] = 0

    def _complete(
        self, under_way: list[_UnderWay]
    ) -> Iterator[tuple[MediaFile, np.ndarray, VideoEnd]]:
        while under_way:
            first = under_way[0]
            if first.end is None or len(first.rows) < first.num_clips:
                return
            del under_way[0]
            self.num_extracted += 1
            self.num_damaged += bool(first.end.damage)
            yield first.video, np.stack(first.rows), first.end

    def _note_unreadable(self, video: MediaFile, reason: str) -> None:
        if self.strict:
            raise UserError(f"{video.name}: {reason}")
        self.unreadable.append((video.name, reason))

    def show(self, num_done: int) -> None:
        """Moves the progress bar on."""
        self.bar.n = num_done + len(self.unreadable)
        self.bar.update(0)
