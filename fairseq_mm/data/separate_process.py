"""Runs functions that read damaged or hostile files in a separate process with limits."""

import faulthandler
import json
import multiprocessing
import os
import resource
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any, Callable, NoReturn

from fairseq_mm.errors import UserError

# seconds for a file of any size: damaged metadata can keep libhdf5 in an endless loop
PATIENCE = 8.0
# bytes per second of the slowest disk or network that a whole file is verified on
_SLOWEST = 5e6
# bytes in addition to the memory at the start; files that are mapped for reading do not count
MEMORY = 2 << 30


def in_separate_process(path: str, function: Callable[[], Any]) -> Any:
    """Run ``function`` in a separate process, and return its result, which JSON must be able to
    represent.

    ``path`` is the file that the function reads: its size determines the time limit, and messages
    name it.
    """
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    receiver, sender = multiprocessing.Pipe(duplex=False)
    try:
        # not multiprocessing.Process: daemonic processes, such as workers, may not start any
        child = os.fork()
    except OSError as error:
        raise UserError(
            f"{path}: is read in a process of its own, but none can be started ({error.strerror})."
        ) from None
    if child == 0:
        _answer_and_exit(sender, path, function)
    # otherwise the pipe would not end when the child crashes, and poll would wait until the limit
    sender.close()
    seconds = PATIENCE + size / _SLOWEST
    status = None
    try:
        if not receiver.poll(seconds):
            raise UserError(
                f"{path}: HDF5 file is damaged: reading it did not end in {seconds:.0f} s."
            )
        answer = json.loads(receiver.recv_bytes())
    except EOFError:
        _, status = os.waitpid(child, 0)
        raise UserError(
            f"{path}: HDF5 file is damaged: reading it crashed "
            f"(status {os.waitstatus_to_exitcode(status)})."
        ) from None
    finally:
        if status is None:
            # waited for, because an ended child stays in the process table until its status is read
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        receiver.close()
    if "error" in answer:
        raise UserError(answer["error"])
    return answer["result"]


def _answer_and_exit(sender: Connection, path: str, function: Callable[[], Any]) -> NoReturn:
    try:
        faulthandler.disable()  # no dump of the stack: the parent reports a crash in one line
        _limit_memory()
        try:
            answer = {"result": function()}
        except UserError as error:
            answer = {"error": str(error)}
        except MemoryError:
            answer = {"error": f"{path}: HDF5 file is damaged: reading it took {MEMORY >> 20} MiB."}
        # JSON, not a pickle: a process that a hostile file has taken over could send any pickle
        sender.send_bytes(json.dumps(answer).encode())
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # not sys.exit, which would run exit functions and `finally` blocks that belong to the parent
    os._exit(0)


def _limit_memory() -> None:
    # a crash is expected: it must not fill the disk with core files
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        # the sixth number of statm: pages of data and stack, which RLIMIT_DATA counts
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        return  # not Linux: only the time is limited
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
