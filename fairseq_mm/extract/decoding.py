"""Decodes image and video files in several processes; results have the order of the files.

Each process decodes whole files, and is ahead of the network by at most ``Reader.max_waiting``
images or clips, so that memory does not grow with the length of a video. The processes end with the
run that started them, even if it is killed. This module does not import torch.
"""

import contextlib
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
from typing import Any, Optional

from fairseq_mm.errors import UserError
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.extract.readers import AHEAD_FILES, Event, MediaEnd, Reader, Unreadable


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
    """Handle of a decoding process, by which the main process sends files and receives inputs."""

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
