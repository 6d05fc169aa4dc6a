"""Runs commands one after the other, shows them, keeps their logs, and continues where it ended."""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Optional, Union

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
}


class StepRunner:
    """Steps of one run; those that a former run finished are not repeated.

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
        self.seconds: dict[str, float] = {}  # by step, in their order
        self._finished: dict[str, float] = {}
        progress = folder / _PROGRESS_FILE
        if progress.is_file():
            try:
                record = read_json(progress)
                former, self._finished = record["settings"], record["seconds"]
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

    def call(self, title: str, function: Callable[[], Optional[str]]) -> None:
        """Runs a step in this process; ``function`` may return a line to show."""
        if self._begin(title):
            return
        start = time.monotonic()
        self._end(title, start, function() or "")

    def command(
        self,
        title: str,
        *parts: Union[str, Path],
        output: Optional[Path] = None,
        shown: Optional[Callable[[str], str]] = None,
    ) -> None:
        """Runs a step as a process of its own.

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
        done = self._begin(title)
        print(f"      {shlex.join(words)}" + (f" > {output}" if output else ""), flush=True)
        if done:
            return
        start = time.monotonic()
        log = self.folder / "logs" / f"{title.lower().replace(' ', '-')}.log"
        last = _run(words, log, shown)
        if output is not None:
            os.replace(log, output)
            last = ""
        self._end(title, start, "" if shown else last.rstrip("."))

    def _begin(self, title: str) -> bool:
        """Shows the step; True if it was finished by a former run."""
        print(f"[{len(self.seconds) + 1}/{self.total}] {title}", flush=True)
        if title not in self._finished:
            return False
        self.seconds[title] = self._finished[title]
        print("      done before")
        return True

    def _end(self, title: str, start: float, remark: str) -> None:
        self.seconds[title] = round(time.monotonic() - start, 1)
        progress = self.folder / _PROGRESS_FILE
        partial = progress.with_name(f"{_PROGRESS_FILE}.partial")
        record = {"settings": self.settings, "seconds": self.seconds}
        partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, progress)
        print(f"      {remark + '; ' if remark else ''}{self.seconds[title]:.1f} s", flush=True)


def _run(words: list[str], log: Path, shown: Optional[Callable[[str], str]]) -> str:
    """Runs a command with its output in ``log``; the last line of it that is not empty."""
    paths = [str(_PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    last = ""
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, *_INTERPRETED[words[0]], *words[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            encoding="utf-8",
            errors="replace",
        )
        try:
            for line in process.stdout:
                file.write(line)
                last = line.strip() or last
                text = shown(line) if shown else ""
                if text:
                    print(f"      {text}", flush=True)
        finally:
            # the user's interrupt reached the process as well: it gets the time to stop
            status = process.wait()
    if status != 0:
        raise UserError(f"{words[0]} ended with exit status {status}: {last} (all of it: {log})")
    return last
