"""Runs chains of commands in parallel, shows them, keeps their logs, and continues them later."""

import contextlib
import fcntl
import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar, Union

import fairseq_mm
from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError

_PROGRESS_FILE = "demo.json"
_PARTIAL_FILE = f"{_PROGRESS_FILE}.partial"
_LOCK_FILE = "lock"
PACKAGE = Path(fairseq_mm.__file__).resolve().parent
# `python -m fairseq_mm` would name the program differently in its messages.
_FAIRSEQ_MM = "import sys; sys.argv[0] = 'fairseq-mm'; from fairseq_mm.cli import main; "
_INTERPRETED = {
    "fairseq-mm": ["-c", f"{_FAIRSEQ_MM}sys.exit(main.main())"],
    "fairseq-train": ["-m", "fairseq_cli.train"],
    "fairseq-generate": ["-m", "fairseq_cli.generate"],
    "call": [
        "-c",
        "import pickle, pkgutil, sys; name, arguments = pickle.loads(bytes.fromhex(sys.argv[1])); "
        "print(pkgutil.resolve_name(name)(**arguments) or '')",
    ],
}
_SECONDS_TO_END = 10  # an interrupted process that runs longer is killed

Result = TypeVar("Result")


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class StepRunner:
    """Runner of the steps of one run, each a process. Finished steps are not repeated later.

    Args:
        folder: Folder of all results; made if it does not exist.
        settings: Settings that the results depend on.
        total: Number of steps, to be shown.

    Raises:
        UserError: If the folder has other content, or results of other settings.
    """

    def __init__(self, folder: Path, settings: dict[str, object], *, total: int) -> None:
        self.folder = folder
        self.settings = settings
        self.total = total
        self.seconds: dict[str, float] = {}  # by title of a finished step, in the order of ending
        self.commands: dict[str, str] = {}  # of begun steps that are commands, by title
        self._begun = 0
        self._threads = available_cores()  # threads of each process
        # guards printing and all attributes, which tracks share; told when a step ends
        self._lock = threading.Condition()
        self._running: set[subprocess.Popen] = set()
        self._inherited: list[int] = []  # open files that all processes share
        self._stopped = False
        progress = folder / _PROGRESS_FILE
        if progress.is_file():
            try:
                record = read_json(progress)
                former = record["settings"]
                self.seconds = {title: float(x) for title, x in record["seconds"].items()}
            except (ValueError, KeyError, TypeError, AttributeError):
                raise UserError(f"{progress}: is damaged; remove {folder} to start over.") from None
            if former != settings:
                raise UserError(
                    f"{folder}: was made with other settings ({json.dumps(former)}, now "
                    f"{json.dumps(settings)}); remove it, or give another --output."
                )
        else:
            if folder.exists() and not (folder.is_dir() and _is_new(folder)):
                raise UserError(
                    f"{folder}: holds something else than a demo; give another --output, or "
                    "remove it."
                )
            folder.mkdir(parents=True, exist_ok=True)
            self._record()
        (folder / "logs").mkdir(exist_ok=True)

    def side_by_side(self, *tracks: Callable[[], Result]) -> list[Result]:
        """Run chains of steps in parallel, as many as there are cores, and begin in their order.

        Args:
            tracks: Functions that run steps. Each process gets its share of the cores. A track may
                wait for a step of an earlier one (:meth:`wait_for`), but not of a later one.

        Returns:
            Return values of the functions.

        Raises:
            UserError: If a step fails. The processes of all tracks are then ended, as after an
                interruption. Or if a process of another run has not ended.
        """
        cores = available_cores()
        self._threads = max(1, cores // min(cores, len(tracks)))
        with self._only_run(), ThreadPoolExecutor(min(cores, len(tracks))) as pool:
            try:
                results = [pool.submit(track) for track in tracks]
                for result in as_completed(results):
                    result.result()
            except BaseException:
                self._stop()
                raise
        return [result.result() for result in results]

    @contextlib.contextmanager
    def _only_run(self) -> Iterator[None]:
        """Hold the folder's lock in a ``with`` block, together with the processes of all steps.

        The processes of a killed run go on, and hold its lock until they end: otherwise two
        trainings would write the same checkpoints.
        """
        with open(self.folder / _LOCK_FILE, "w", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"{self.folder}: another run, or a process that a killed run has left behind, "
                    "is writing to it; wait until it has ended."
                ) from None
            except OSError:
                pass  # some network file systems have no locks
            self._inherited = [file.fileno()]
            try:
                yield
            finally:
                self._inherited = []

    def wait_for(self, title: str) -> None:
        """Wait until a step of another track has ended.

        Raises:
            UserError: If the run is stopped before.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._stopped or title in self.seconds)
            if title not in self.seconds:
                raise UserError("the run has been stopped.")

    def call(
        self,
        title: str,
        function: str,
        *,
        shown: Optional[Callable[[str], str]] = None,
        **arguments: Any,
    ) -> None:
        """Run a function in another process as a step; its process prints the line it returns.

        Args:
            title: Title of the step.
            function: Module and name of the function, such as ``os.path.basename``.
            shown: See :meth:`command`.
            arguments: Arguments of the function.
        """
        self._step(title, ["call", pickle.dumps((function, arguments)).hex()], shown=shown)

    def command(
        self,
        title: str,
        *parts: Union[str, Path],
        output: Optional[Path] = None,
        shown: Optional[Callable[[str], str]] = None,
    ) -> None:
        """Run a command as a step.

        Args:
            title: Title of the step.
            parts: The command and its arguments. Text is split at spaces, paths are not.
            output: File for the output, complete or not written at all; a log by default.
            shown: Function from a line of output to the text to show while the command runs. By
                default the last line is shown at the end.

        Raises:
            UserError: If the command fails, with the last line that it printed.
        """
        words: list[str] = []
        for part in parts:
            words += [str(part)] if isinstance(part, Path) else part.split()
        text = shlex.join(words) + (f" > {output}" if output else "")
        self.commands[title] = text
        self._step(title, words, text=f"\n      {text}", output=output, shown=shown)

    def _step(
        self,
        title: str,
        words: list[str],
        *,
        text: str = "",
        output: Optional[Path] = None,
        shown: Optional[Callable[[str], str]] = None,
    ) -> None:
        with self._lock:
            self._begun += 1
            name = f"[{self._begun}/{self.total}] {title}"
            done = title in self.seconds
            if not self._stopped:
                print(f"{name}{text}" + ("\n      done before" if done else ""), flush=True)
        if done:
            return
        start = time.monotonic()
        log = self.folder / "logs" / f"{title.lower().replace(' ', '-')}.log"
        status, last = self._run(words, log, lambda line: self._show(name, shown, line))
        if status != 0:
            raise UserError(f"{title}: ended with exit status {status}: {last} (all of it: {log})")
        if output is not None:
            os.replace(log, output)
        seconds = round(time.monotonic() - start, 1)
        remark = "" if output or shown or not last else f"{last.rstrip('.')}; "
        with self._lock:
            self.seconds[title] = seconds
            self._record()
            self._lock.notify_all()
            print(f"{name}: {remark}{seconds:.1f} s", flush=True)

    def _record(self) -> None:
        progress = self.folder / _PROGRESS_FILE
        partial = self.folder / _PARTIAL_FILE
        record = {"settings": self.settings, "seconds": self.seconds}
        partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, progress)

    def _show(self, name: str, shown: Optional[Callable[[str], str]], line: str) -> None:
        text = shown(line) if shown else ""
        if text:
            with self._lock:
                print(f"{name}: {text}", flush=True)

    def _run(self, words: list[str], log: Path, show: Callable[[str], None]) -> tuple[int, str]:
        """Run a command with its output in ``log``; return its exit status and last filled line."""
        last = ""
        with open(log, "w", encoding="utf-8") as file:
            process = self._start(words)
            for line in process.stdout or ():
                file.write(line)
                last = line.strip() or last
                show(line)
            status = process.wait()
        with self._lock:
            self._running.remove(process)
        return status, last

    def _start(self, words: list[str]) -> subprocess.Popen:
        paths = [str(PACKAGE.parent), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        with self._lock:
            if self._stopped:
                raise UserError("the run has been stopped.")
            process = subprocess.Popen(
                [sys.executable, *_INTERPRETED[words[0]], *words[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={
                    "OMP_NUM_THREADS": str(self._threads),
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                },
                encoding="utf-8",
                errors="replace",
                pass_fds=self._inherited,
            )
            self._running.add(process)
        return process

    def _stop(self) -> None:
        """End all running processes and let no other step begin."""
        with self._lock:
            self._stopped = True
            self._lock.notify_all()
            running = list(self._running)
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            try:
                process.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()


def _is_new(folder: Path) -> bool:
    """Return True if a folder has nothing but what a run killed at its start has written."""
    return {path.name for path in folder.iterdir()} <= {_PARTIAL_FILE}
