"""Time and memory of a command with all its processes (Linux)."""

import os
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

INTERVAL = 0.25  # seconds between two looks at the memory


class Measured(NamedTuple):
    """
    Attributes:
        status: exit status.
        seconds: wall time.
        cpu_seconds: of all processes, user and system.
        anonymous: peak in bytes of the memory of all processes that no file backs: what they need,
            shared pages once.
        resident: the same with pages of mapped files, which the kernel can drop.
        gpu: peak in bytes of the memory in use on the GPU, by all of the machine; 0 without one.
    """

    status: int
    seconds: float
    cpu_seconds: float
    anonymous: int
    resident: int
    gpu: int


class Watch:
    """A command in a session of its own, with the peaks of its memory.

    Args:
        command: and its arguments.
        log: file that gets its output.
        folder: in which it runs.
        environment: variables beside those of this process.
        gpu: look at the memory of the GPU, too.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        folder: Path,
        environment: Mapping[str, str],
        *,
        gpu: bool = False,
    ) -> None:
        self.command = shlex.join(command)
        self._gpu = gpu
        self._peaks = [0, 0, 0]
        self._ended = threading.Event()
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"$ {self.command}\n")
            file.flush()
            self._began = time.perf_counter()
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def memory(self) -> tuple[int, int]:
        """Now: anonymous and resident, in bytes."""
        return session_memory(self._process.pid)

    def is_running(self) -> bool:
        """Whether the command has not ended yet."""
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is None

    def wait(self) -> Measured:
        """Until it ends."""
        _, status, usage = os.wait4(self._process.pid, 0)
        seconds = time.perf_counter() - self._began
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set()
        self._thread.join()
        cpu_seconds = usage.ru_utime + usage.ru_stime
        return Measured(self._process.returncode, seconds, cpu_seconds, *self._peaks)

    def _look(self) -> None:
        while not self._ended.is_set():
            now = (*self.memory(), _gpu_memory() if self._gpu else 0)
            self._peaks = [max(pair) for pair in zip(self._peaks, now)]
            self._ended.wait(INTERVAL)


def session_memory(session: int) -> tuple[int, int]:
    """Anonymous and resident memory of a session's processes, in bytes; a page that several share
    counts once."""
    anonymous = resident = 0
    for process in _processes(session):
        sizes = _sizes(process)
        anonymous += sizes.get("Pss_Anon", 0) + sizes.get("Pss_Shmem", 0)
        resident += sizes.get("Pss", 0)
    return anonymous, resident


def _processes(session: int) -> Iterator[str]:
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        content = _content(f"/proc/{name}/stat")
        # pid (name) state ppid pgrp session: the name may hold anything
        fields = content.rpartition(")")[2].split()
        if len(fields) > 3 and int(fields[3]) == session:
            yield name


def _sizes(process: str) -> dict[str, int]:
    """Fields of smaps_rollup, in bytes."""
    sizes = {}
    for line in _content(f"/proc/{process}/smaps_rollup").splitlines()[1:]:
        name, _, value = line.partition(":")
        sizes[name] = 1024 * int(value.split()[0])
    return sizes


def _content(path: str) -> str:
    """Nothing of a process that has ended."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _gpu_memory() -> int:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return max(int(line) for line in found.stdout.split()) << 20


def measure(
    command: Sequence[str],
    log: Path,
    folder: Path,
    environment: Optional[Mapping[str, str]] = None,
    *,
    gpu: bool = False,
) -> Measured:
    """Runs a command to its end; see :class:`Watch`."""
    return Watch(command, log, folder, environment or {}, gpu=gpu).wait()
