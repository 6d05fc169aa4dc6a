"""Work on a file that may be damaged or hostile, in a process of its own with limits."""

import faulthandler
import json
import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any, Callable

from fairseq_mm.errors import UserError

# for a file of any size, and bytes a second that any disk gives
PATIENCE = 8.0
_SLOWEST = 5e6
# beyond what the process has at its beginning; files that are mapped to be read do not count
MEMORY = 2 << 30


def in_separate_process(path: str, function: Callable[[], Any]) -> Any:
    """What ``function`` returns, where whatever libhdf5 does to it ends in one line.

    Args:
        path: file that is read: its size says how long it may take.
        function: of this process; its result must be JSON.

    Raises:
        UserError: that of ``function``, or if it takes too long or too much memory, or crashes.
    """
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, path, function), daemon=True)
    process.start()
    sender.close()
    seconds = PATIENCE + size / _SLOWEST
    try:
        if not receiver.poll(seconds):
            raise UserError(
                f"{path}: HDF5 file is damaged: reading it did not end in {seconds:.0f} s."
            )
        answer = json.loads(receiver.recv_bytes())
    except EOFError:
        process.join()
        raise UserError(
            f"{path}: HDF5 file is damaged: reading it crashed (status {process.exitcode})."
        ) from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    if "error" in answer:
        raise UserError(answer["error"])
    return answer["result"]


def _answer(sender: Connection, path: str, function: Callable[[], Any]) -> None:
    faulthandler.disable()  # the parent says in one line what a crash means
    _limit_memory()
    try:
        answer = {"result": function()}
    except UserError as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": f"{path}: HDF5 file is damaged: reading it took {MEMORY >> 20} MiB."}
    sender.send_bytes(json.dumps(answer).encode())


def _limit_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        return  # no Linux: time alone is limited
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
