"""Runs chains of commands beside each other, shows them, keeps their logs, and continues where it
ended."""

import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar, Union

from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError

_PROGRESS_FILE = "demo.json"
_PACKAGE = Path(__file__).resolve().parents[1]
# `python -m` would give the program another name, and fairseq would be imported where none is
# needed.
_FAIRSEQ_MM = "import sys; sys.argv[0] = 'fairseq-mm'; from fairseq_mm.cli import main; "
_INTERPRETED = {
    "fairseq-mm": ["-c", f"{_FAIRSEQ_MM}sys.exit(main.main())"],
    "fairseq-train": ["-m", "fairseq_cli.train"],
    "fairseq-generate": ["-m", "fairseq_cli.generate"],
    "call": [
        "-c",
        "import pickle, sys; function, arguments = pickle.loads(bytes.fromhex(sys.argv[1])); "
        "print(function(**arguments) or '')",
    ],
}
_SECONDS_TO_END = 10  # of an interrupted process, until it is killed

Result = TypeVar("Result")


def available_cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class StepRunner:
    """Steps of one run, each a process; those that a former run finished are not repeated.

    Args:
        folder: of all results; made if it does not exist.
        settings: what the results depend on.
        total: number of steps, to be shown.

    Raises:
        UserError: if the folder holds something else, or results of other settings.
    """

    def __init__(self, folder: Path, settings: dict[str, object], *, total: int) -> None:
        self.folder = folder
        self.settings = settings
        self.total = total
        self.seconds: dict[str, float] = {}  # by finished step, in the order in which they ended
        self._begun = 0
        self._threads = available_cores()  # of each process
        self._lock = threading.Lock()  # of all that tracks share: what is printed, and the rest
        self._running: set[subprocess.Popen] = set()
        self._stopped = False
        progress = folder / _PROGRESS_FILE
        if progress.is_file():
            try:
                record = read_json(progress)
                former, self.seconds = record["settings"], record["seconds"]
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{progress}: is damaged; remove {folder} to start over.") from None
            if former != settings:
                raise UserError(
                    f"{folder}: was made with other settings ({json.dumps(former)}, now "
                    f"{json.dumps(settings)}); remove it, or give another --output."
                )
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(
                f"{folder}: holds something else than a demo; give another --output, or remove it."
            )
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        self._record()

    def side_by_side(self, *tracks: Callable[[], Result]) -> list[Result]:
        """Runs chains of steps beside each other; on one core one after the other.

        Args:
            tracks: functions that run steps. Each process gets its share of the cores.

        Returns:
            What each of them returns.

        Raises:
            UserError: of the first step that fails. Then, as at an interruption, the processes of
                all tracks are ended.
        """
        cores = available_cores()
        self._threads = max(1, cores // len(tracks))
        with ThreadPoolExecutor(min(cores, len(tracks))) as pool:
            try:
                results = [pool.submit(track) for track in tracks]
                for result in as_completed(results):
                    result.result()
            except BaseException:
                self._stop()
                raise
        return [result.result() for result in results]

    def call(
        self,
        title: str,
        function: Callable[..., Optional[str]],
        *,
        shown: Optional[Callable[[str], str]] = None,
        **arguments: Any,
    ) -> None:
        """Runs a function of a module as a step; it may return a line that its process prints.

        Args:
            title: what it does.
            function: found by its name, in another process.
            shown: as of ``command``.
            arguments: of the function.
        """
        self._step(title, ["call", pickle.dumps((function, arguments)).hex()], shown=shown)

    def command(
        self,
        title: str,
        *parts: Union[str, Path],
        output: Optional[Path] = None,
        shown: Optional[Callable[[str], str]] = None,
    ) -> None:
        """Runs a command as a step.

        Args:
            title: what it does.
            parts: the command and its arguments: text is split at its spaces, a path is not.
            output: file that gets its output, whole or not at all; the log gets it otherwise.
            shown: of a line of output, what to show while it runs; by default the last line of
                all is shown at the end.

        Raises:
            UserError: if it fails, with the last line that it printed.
        """
        words: list[str] = []
        for part in parts:
            words += [str(part)] if isinstance(part, Path) else part.split()
        text = f"\n      {shlex.join(words)}" + (f" > {output}" if output else "")
        self._step(title, words, text=text, output=output, shown=shown)

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
            print(f"{name}: {remark}{seconds:.1f} s", flush=True)

    def _record(self) -> None:
        progress = self.folder / _PROGRESS_FILE
        partial = progress.with_name(f"{_PROGRESS_FILE}.partial")
        record = {"settings": self.settings, "seconds": self.seconds}
        partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, progress)

    def _show(self, name: str, shown: Optional[Callable[[str], str]], line: str) -> None:
        text = shown(line) if shown else ""
        if text:
            with self._lock:
                print(f"{name}: {text}", flush=True)

    def _run(self, words: list[str], log: Path, show: Callable[[str], None]) -> tuple[int, str]:
        """Runs a command with its output in ``log``; its exit status, and the last line of its
        output that is not empty."""
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
        paths = [str(_PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
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
            )
            self._running.add(process)
        return process

    def _stop(self) -> None:
        """Ends what runs; no other step begins."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            try:
                process.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
