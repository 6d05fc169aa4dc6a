"""Thread that runs the models of the server, and the jobs that wait for this thread.

Jobs that wait at the same time for the same model with the same options are one batch.
"""

import asyncio
import contextlib
import io
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

from fairseq_mm.errors import UserError
from fairseq_mm.serving.requests import Query, RefusedError
from fairseq_mm.serving.systems import System

logger = logging.getLogger(__name__)

# seconds between two incomplete texts that are sent to a client
_BETWEEN_TEXTS = 0.05
# seconds that the thread waits for requests which are being received, to batch them
_GATHERING = 0.02
STOPPING = "the server is stopping."


class AbandonedError(Exception):
    """Raised within a generation that no client waits for any more."""


class Job:
    """Query of a client and its future answer; created in the event loop of the server.

    Args:
        system: Loaded checkpoint or image index that answers the query.
        query: Input and options of the request.
        deadline: Time by ``time.monotonic()`` after which nobody waits for the answer.
        sends_texts: True to put incomplete texts in ``texts``.

    Attributes:
        record: Future of the answer, a JSON object as a dict.
        texts: Queue of incomplete texts, with None after the last one.
    """

    def __init__(
        self,
        system: System,
        query: Query,
        *,
        deadline: float,
        sends_texts: bool = False,
    ) -> None:
        self.system = system
        self.query = query
        self.deadline = deadline
        self.sends_texts = sends_texts
        self._loop = asyncio.get_running_loop()
        self.record: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.texts: asyncio.Queue[Optional[str]] = asyncio.Queue()
        self._is_cancelled = False
        self._next_text = 0.0

    def cancel(self) -> None:
        """Mark the job as abandoned by its client; called by the event loop."""
        self._is_cancelled = True
        # asyncio would log an exception that nobody has read
        if not self.record.cancel() and not self.record.cancelled():
            self.record.exception()

    @property
    def is_over(self) -> bool:
        """True if nobody waits for the answer."""
        return self._is_cancelled or time.monotonic() > self.deadline

    def finish(self, result: Any) -> None:
        """Set the answer, or the exception in its place; called by :class:`ModelThread`."""
        self._call(self._set, result)

    def _set(self, result: Any) -> None:
        # a client that has gone has cancelled the future
        if not self.record.done():
            if isinstance(result, Exception):
                self.record.set_exception(result)
            else:
                self.record.set_result(result)
        self.texts.put_nowait(None)

    def send_text(self, decode: Callable[[], str]) -> None:
        """Put the incomplete text ``decode()`` in ``texts``, unless one was put just before."""
        now = time.monotonic()
        if self.sends_texts and now >= self._next_text:
            self._next_text = now + _BETWEEN_TEXTS
            self._call(self.texts.put_nowait, decode())

    def _call(self, function: Any, *arguments: Any) -> None:
        # the loop may have been closed: the server was ended while the thread was busy
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


class WatchedFile(io.RawIOBase):
    """Uploaded file whose reads fail once its job is over, so that no long video is decoded.

    Args:
        file: Uploaded binary file.
    """

    def __init__(self, file: Any) -> None:
        self.file = file
        self.job: Optional[Job] = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.job is not None and self.job.is_over:
            raise OSError("nobody waits for it any more")
        content = self.file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = 0) -> int:
        self.file.seek(offset, whence)
        return self.file.tell()

    def tell(self) -> int:
        return self.file.tell()


class ModelThread:
    """Thread that generates the texts of jobs, batch by batch.

    Attributes:
        seconds_per_batch: Moving average of the seconds that a batch takes.
    """

    def __init__(self) -> None:
        self.seconds_per_batch = 0.0
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._num_receiving = 0
        self._is_stopping = False
        self._is_aborted = False
        self._thread = threading.Thread(target=self._run, name="models", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @contextlib.contextmanager
    def receiving(self) -> Iterator[None]:
        """Context for receiving the body of a request.

        Before each batch, the thread waits a moment for such requests, so that they can join the
        batch.
        """
        with self._changed:
            self._num_receiving += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_receiving -= 1
                self._changed.notify()

    def submit(self, job: Job) -> None:
        """Add a job to the queue.

        Raises:
            RefusedError: if the server is stopping.
        """
        with self._changed:
            if self._is_stopping:
                raise RefusedError(503, STOPPING, retry_after=5)
            self._jobs.append(job)
            self._changed.notify()

    def stop(self) -> None:
        """Refuse the jobs in the queue; the batch that is being generated is finished."""
        with self._changed:
            self._is_stopping = True
            waiting = list(self._jobs)
            self._jobs.clear()
            self._changed.notify()
        for job in waiting:
            job.finish(RefusedError(503, STOPPING, retry_after=5))

    def abort(self) -> None:
        """Refuse the jobs in the queue, and interrupt the current batch at its next step."""
        self._is_aborted = True
        self.stop()

    def join(self, seconds: float) -> bool:
        """Wait for the end of the thread; return False if it has not ended after ``seconds``."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while batch := self._next_batch():
            start = time.monotonic()
            self._answer(batch)
            seconds = time.monotonic() - start
            self.seconds_per_batch += (seconds - self.seconds_per_batch) / 4

    def _answer(self, batch: Sequence[Job]) -> None:
        """Finish the jobs of a batch with their answers or with errors."""
        # not the jobs that nobody waits for: their time has passed in the queue
        batch = [job for job in batch if not job.is_over]
        try:
            if batch:
                self._generate(batch)
            return
        except AbandonedError:
            reason = RefusedError(503, STOPPING, retry_after=5)
            if not self._is_aborted:
                reason = RefusedError(504, "took too long.")
        except UserError as error:
            reason = RefusedError(422, str(batch[0].system.clean(error)))
        except MemoryError:
            reason = RefusedError(503, "not enough memory.", retry_after=5)
        except Exception as error:
            # one line: a request that breaks something must not fill the log
            logger.error("cannot generate: %s: %s", type(error).__name__, error)
            reason = RefusedError(500, "the server failed; its log has the reason.")
        if len(batch) > 1 and reason.status != 503:
            # one job must not spoil the others
            for job in batch:
                self._answer([job])
            return
        for job in batch:
            job.finish(reason)

    def _next_batch(self) -> list[Job]:
        """Wait for jobs, and return the jobs of the next batch; an empty list ends the thread."""
        with self._changed:
            while not self._jobs and not self._is_stopping:
                self._changed.wait()
            end = time.monotonic() + _GATHERING
            while self._num_receiving and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            if not self._jobs:
                return []
            first = self._jobs[0]
            batch: list[Job] = []
            others: list[Job] = []
            for job in self._jobs:
                fits = job.system is first.system and job.query.options == first.query.options
                is_full = len(batch) >= first.system.batch_size
                (batch if fits and not is_full else others).append(job)
            self._jobs = deque(others)
            return batch

    def _generate(self, batch: Sequence[Job]) -> None:
        system = batch[0].system

        def watch(texts: Mapping[int, Callable[[], str]]) -> None:
            is_over = [batch[position].is_over for position in texts]
            if self._is_aborted or (is_over and all(is_over)):
                raise AbandonedError
            for position, decode in texts.items():
                batch[position].send_text(decode)

        for position, result in system.answer([job.query for job in batch], watch):
            job = batch[position]
            if isinstance(result, UserError):
                message = f"{job.query.label}: {result}".removeprefix(": ")
                job.finish(RefusedError(422, message))
            else:
                job.finish(result)
