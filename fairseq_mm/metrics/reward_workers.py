"""Computes rewards in processes that live as long as a training."""

import contextlib
import multiprocessing
import os
import signal
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from fairseq_mm.metrics.rewards import Job, Rewards

# seconds in which a worker ends by itself when its pipe is closed
_PATIENCE = 5.0


class RewardWorkers:
    """Worker processes that compute rewards while the training process goes on.

    A worker ends when its pipe is closed: by :meth:`close`, at the end of the program, or because
    the training process has ended in any way. Workers ignore the interrupt of the keyboard, which
    ends the training process.

    Args:
        rewards: Function that computes the rewards of a job.
        count: Number of processes; 0 to compute the rewards in the calling process.
    """

    def __init__(self, rewards: Rewards, count: int) -> None:
        self.rewards = rewards
        self._waiting: list[Job] = []
        self._sizes: list[int] = []
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        # forked, because the document frequencies are then shared and not copied
        context: Any = multiprocessing.get_context("fork")
        for _ in range(count):
            ours, theirs = context.Pipe()
            others = [*self._pipes, ours]
            process = context.Process(
                target=_work, args=(theirs, others, rewards), name="rewards", daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._end = weakref.finalize(self, _close, self._pipes, self._processes, os.getpid())

    def submit(self, jobs: Sequence[Job]) -> None:
        """Begin to compute the rewards of some jobs; :meth:`collect` must follow."""
        if not self._pipes:
            self._waiting = list(jobs)
            return
        share = -(-len(jobs) // len(self._pipes))
        for i, pipe in enumerate(self._pipes):
            # collect reports a worker that has ended
            with contextlib.suppress(OSError):
                pipe.send(jobs[i * share : (i + 1) * share])

    def collect(self) -> list[list[float]]:
        """Return the rewards of the submitted jobs: one list of numbers per job.

        Raises:
            RuntimeError: if a worker has ended.
        """
        if not self._pipes:
            return [self.rewards.score(job) for job in self._waiting]
        results: list[list[float]] = []
        for pipe, process in zip(self._pipes, self._processes):
            try:
                results += pipe.recv()
            except (EOFError, OSError):
                process.join(_PATIENCE)
                raise RuntimeError(
                    f"a process that computes rewards has ended (status {process.exitcode})."
                ) from None
        return results

    def close(self) -> None:
        """End the processes."""
        self._end()


def _work(pipe: Connection, others: Sequence[Connection], rewards: Rewards) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # the training process's end must be open there alone: otherwise no worker would see it closed
    for other in others:
        other.close()
    try:
        while True:
            pipe.send([rewards.score(job) for job in pipe.recv()])
    except (EOFError, OSError):
        return


def _close(pipes: list[Connection], processes: list[Any], owner: int) -> None:
    # a process that was forked later, such as a loader of data, owns no worker
    if os.getpid() != owner:
        return
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join(_PATIENCE)
        if process.is_alive():
            process.terminate()
            process.join()
    pipes.clear()
    processes.clear()
