"""Extracts features of a list of images or videos into a store; a run can be interrupted.

The inputs of the network (images, or the clips of the videos) form one sequence in the order of the
list, and batches start at fixed positions of the sequence. Files that are done already and images
that cannot be read are replaced by black inputs. After an interruption, every input is therefore in
the same place of the same batch, and the store equals the store of an uninterrupted run to the last
bit, if the number of threads (``OMP_NUM_THREADS``) is the same, too. A video that was incomplete at
an interruption starts anew.

Memory holds the inputs of a batch, the inputs that are decoded ahead, and the features of the
current files. It does not grow with the length of the videos, except for the features: 8 KB for
each clip of 16 frames with 2048 channels (46 MB per hour of video).
"""

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Optional

import numpy as np
from tqdm.auto import tqdm

from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import BatchFeatures, Extractor
from fairseq_mm.extract.media import MediaFile
from fairseq_mm.extract.readers import MediaEnd, Reader, Unreadable, decode_files
from fairseq_mm.extract.run_files import (
    Journal,
    RunSummary,
    check_same_items,
    write_unreadable,
)

# batches that a GPU computes, while the main thread collects the next one
MAX_BATCHES_AHEAD = 2
# With fewer images, tracing the network takes longer than it saves. The number of all images
# decides, so that a run that goes on after an interruption computes the same features.
_TRACED_IMAGES = 500
# a finished file, its rows ``[rows, D]``, the number of its inputs, and its end
Finished = tuple[MediaFile, np.ndarray, int, MediaEnd]


def extract_to_store(
    extractor: Extractor,
    reader: Reader,
    files: Sequence[MediaFile],
    output: str,
    *,
    batch_size: Optional[int] = None,
    workers: Optional[int] = None,
    dtype: str = "float16",
    overwrite: bool = False,
    strict: bool = False,
    show_progress: bool = False,
    shard: Optional[Mapping[str, object]] = None,
) -> RunSummary:
    """Write the features of all files into one feature store, or continue an interrupted run.

    The run writes the folder ``output.partial`` first. Files that cannot be read are listed in
    ``output.unreadable.tsv``. For videos, ``output.videos.tsv`` has the number of frames, the frame
    rate and the length of each video.

    Args:
        batch_size: Images or clips in a batch (default on a CPU: 8; on a GPU: 128 or 64).
        workers: Number of decoding processes. The default on a CPU is a quarter of the cores, with
            a GPU all cores except one, but at most 16. With 0, this process decodes.
        dtype: ``float16`` or ``float32``, the dtype of the features in the store.
        strict: Raise UserError at the first file that cannot be read, instead of leaving it out.
        shard: Attributes for the store if ``files`` are a shard of a list: ``shard``, such as
            ``2/3``, and ``shard_of``, a digest of the ids of the whole list.
    """
    noun = reader.kind.fields
    attributes = {**extractor.identity, **(shard or {})}
    with contextlib.ExitStack() as stack:
        writer = FeatureStoreWriter(
            output, dim=extractor.dim, dtype=dtype, attributes=attributes, overwrite=overwrite
        )
        stack.enter_context(writer)
        check_same_items(writer, files, noun)
        journal, done = None, dict.fromkeys(writer.done, 1)
        if reader.columns:
            columns = ("id", reader.inputs_are, *reader.columns)
            journal = stack.enter_context(Journal(writer, noun, columns))
            done = journal.num_inputs
        bar = stack.enter_context(_progress_bar(len(files), len(done), noun, show_progress))
        run = _Run(extractor, reader, batch_size or extractor.default_batch_size, strict, bar)
        if workers is None:
            # Slurm may have given this process a few of the cores that cpu_count has
            has_affinity = hasattr(os, "sched_getaffinity")
            cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
            is_cpu = extractor.device.type == "cpu"
            workers = max(1, cores // 4 if is_cpu else min(16, cores - 1))
        finished = run.finished(files, done, workers)
        stack.enter_context(contextlib.closing(finished))  # also ends the processes after an error
        for file, rows, num_inputs, end in finished:
            if journal is not None:
                journal.note(file.key, num_inputs, end)
            writer.append(file.key, rows, end.source)
            run.show(len(writer.done))
        if files and not writer.done:
            name, reason = run.unreadable[0]
            raise UserError(
                f"none of the {len(files)} {noun} can be read; the first is {name}: {reason}"
            )
        # the store last: a run that finds it finished writes no tables any more
        write_unreadable(output, run.unreadable)
        if journal is not None:
            journal.finish()
        writer.finish()
        return run.summary(len(writer.done))


def _progress_bar(total: int, initial: int, noun: str, is_shown: bool) -> tqdm:
    return tqdm(
        total=total,
        initial=initial,
        unit=f" {noun}",
        disable=not is_shown,
        # in a log file no update replaces the one before
        mininterval=0.5 if sys.stderr.isatty() else 10,
        dynamic_ncols=True,
    )


class _FileInProgress:
    """File that is being decoded, and the features of its images or clips computed so far."""

    def __init__(self, file: MediaFile) -> None:
        self.file = file
        self.rows: list[np.ndarray] = []  # [rows, D] for each computed input
        self.num_inputs = 0  # decoded so far
        self.end: Optional[MediaEnd] = None


class _Run:
    """Loop over the images or clips of all files, with counters for :class:`RunSummary`."""

    def __init__(
        self, extractor: Extractor, reader: Reader, batch_size: int, strict: bool, bar: tqdm
    ) -> None:
        self.extractor = extractor
        self.reader = reader
        self.batch_size = batch_size
        self.strict = strict
        self.bar = bar
        self.unreadable: list[tuple[str, str]] = []
        self.num_extracted = self.num_inputs = 0
        self.seconds_waiting = self.seconds_network = 0.0
        self.began = time.perf_counter()
        # inputs of the batch, None for black inputs, and the file of each input
        self._inputs: list[Optional[np.ndarray]] = []
        self._owners: list[Optional[_FileInProgress]] = []
        self._in_progress: deque[_FileInProgress] = deque()
        # The GPU is used in a thread of its own: starting the kernels of a large network takes
        # about as long as receiving the inputs of a batch.
        self._thread = ThreadPoolExecutor(1) if extractor.device.type == "cuda" else None
        self._computing: deque[tuple[list[Optional[_FileInProgress]], Future]] = deque()

    def close(self) -> None:
        """Wait for the thread that runs the network on a GPU."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def finished(
        self, files: Sequence[MediaFile], done: Mapping[str, int], workers: int
    ) -> Generator[Finished, None, None]:
        """Yield each file that is not in the store, as soon as all of its features are computed.

        ``done`` maps the id of each file in the store to its number of images or clips.
        """
        left = [file for file in files if file.key not in done]
        if left and len(files) >= _TRACED_IMAGES:
            self.extractor.trace_network()
        with (
            contextlib.closing(self),
            contextlib.closing(decode_files(left, self.reader, workers=workers)) as events,
        ):
            for file in files:
                if file.key not in done:
                    yield from self._process_file(file, events)
                # black inputs: every later input keeps its place in the batches
                for _ in range(done.get(file.key, 0)):
                    yield from self._add_input(None, None)
            self._compute_batch()
            while self._computing:
                self._take_oldest_batch()
            yield from self._pop_finished()

    def _process_file(self, file: MediaFile, events: Iterator) -> Iterator[Finished]:
        current = _FileInProgress(file)
        self._in_progress.append(current)
        while current.end is None:
            began = time.perf_counter()
            event = next(events)
            self.seconds_waiting += time.perf_counter() - began
            if isinstance(event, MediaEnd):
                current.end = event
            elif isinstance(event, Unreadable):
                if self.strict:
                    raise UserError(f"{file.name}: {event.reason}")
                self.unreadable.append((file.name, event.reason))
                self._in_progress.remove(current)
                for _ in range(self.reader.inputs_per_file or 0):
                    yield from self._add_input(None, None)
                break
            else:
                current.num_inputs += 1
                yield from self._add_input(event, current)
        yield from self._pop_finished()

    def _add_input(
        self, value: Optional[np.ndarray], owner: Optional[_FileInProgress]
    ) -> Iterator[Finished]:
        self._inputs.append(value)
        self._owners.append(owner)
        if len(self._inputs) == self.batch_size:
            self._compute_batch()
            yield from self._pop_finished()

    def _compute_batch(self) -> None:
        """Compute the features of the collected batch; a GPU computes while the next batches are
        collected. The network does not run if all inputs are black."""
        inputs, owners = self._inputs, self._owners
        self._inputs, self._owners = [], []
        if self._thread is None:
            self._take_features(owners, self.extractor.start_batch(inputs))
            return
        self._computing.append((owners, self._thread.submit(self.extractor.start_batch, inputs)))
        while len(self._computing) > MAX_BATCHES_AHEAD:
            self._take_oldest_batch()

    def _take_oldest_batch(self) -> None:
        owners, batch = self._computing.popleft()
        self._take_features(owners, batch.result())

    def _take_features(
        self, owners: Sequence[Optional[_FileInProgress]], batch: BatchFeatures
    ) -> None:
        for owner, rows in zip(owners, batch.get()):
            if owner is not None and rows is not None:
                owner.rows.append(rows)
                self.num_inputs += 1
        self.seconds_network += batch.seconds_network

    def _pop_finished(self) -> Iterator[Finished]:
        # in the order of the list, which is the order of the store
        while self._in_progress:
            first = self._in_progress[0]
            if first.end is None or len(first.rows) < first.num_inputs:
                return
            self._in_progress.popleft()
            self.num_extracted += 1
            yield first.file, np.concatenate(first.rows), first.num_inputs, first.end

    def show(self, num_done: int) -> None:
        self.bar.n = num_done + len(self.unreadable)
        # the bar also counts files that earlier runs have done
        in_this_run = f"{self.reader.inputs_are} in this run"
        counts = {in_this_run: self.num_inputs, "unreadable": len(self.unreadable)}
        self.bar.set_postfix(counts, refresh=False)
        # draws the bar at most once in `mininterval`, unlike refresh
        self.bar.update(0)

    def summary(self, num_items: int) -> RunSummary:
        return RunSummary(
            num_items=num_items,
            num_unreadable=len(self.unreadable),
            num_extracted=self.num_extracted,
            num_inputs=self.num_inputs,
            seconds=time.perf_counter() - self.began,
            seconds_waiting=self.seconds_waiting,
            seconds_network=self.seconds_network,
        )
