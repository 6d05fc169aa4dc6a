"""Output files that appear only when they are complete."""

import contextlib
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from typing import TextIO, Union

from fairseq_mm.errors import UserError


@contextlib.contextmanager
def output_file(path: Union[str, os.PathLike], *, errors: str = "strict") -> Iterator[TextIO]:
    """Open a UTF-8 text file that is moved into place at the end, and removed after an error.

    A device or a pipe (``/dev/null``, ``/dev/stdout``) is written directly, since moving a file
    there would replace it. A symbolic link stays, and the file to which it points is replaced.

    Raises:
        UserError: If it cannot be written.
    """
    path = os.fspath(path)
    try:
        is_special = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
        # if /dev/stdout is a regular file, the shell has opened it for this process
        if is_special or os.path.abspath(path).startswith(("/dev/", "/proc/")):
            with open(path, "a", encoding="utf-8", errors=errors) as file:
                yield file
            return
        target = os.path.realpath(path)
        if os.path.isdir(target):
            raise IsADirectoryError(0, "Is a directory")
        with partial_path(target) as partial:
            with open(partial, "w", encoding="utf-8", errors=errors, newline="\n") as file:
                yield file
            os.replace(partial, target)  # atomic, since both are in the same folder
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}).") from None


@contextlib.contextmanager
def partial_path(target: str) -> Iterator[str]:
    """Yield a temporary path next to ``target`` for an incomplete file or folder; remove it at the
    end.

    First, temporary files of killed writers of the same target are removed: those of processes of
    this machine that no longer run, and those of any machine that were not written for a day.
    """
    # the name of the machine: process ids are unique only there, and folders may be shared (NFS)
    host = re.sub(r"[^\w-]", "-", platform.node())
    folder, name = os.path.split(os.path.abspath(target))
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            match = entry.startswith(f"{name}.") and _PARTIAL.fullmatch(entry[len(name) :])
            if match:
                path = os.path.join(folder, entry)
                _remove_leftover(path, int(match["pid"]), match["host"] == host)
    partial = f"{target}.{host}.{os.getpid()}.partial"
    try:
        yield partial
    finally:
        _remove(partial)


# versions before 0.2 wrote no machine name
_PARTIAL = re.compile(r"\.(?:(?P<host>[\w-]*)\.)?(?P<pid>[0-9]{1,9})\.partial")
_DAY = 24 * 60 * 60


def _remove_leftover(path: str, process: int, is_of_this_machine: bool) -> None:
    with contextlib.suppress(OSError):
        is_gone = is_of_this_machine and not _is_running(process)
        if is_gone or time.time() - os.path.getmtime(path) > _DAY:
            _remove(path)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process belongs to another user
        return True
    return True


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.remove(path)


def write_file(path: Union[str, os.PathLike], text: str) -> None:
    """Write a file completely or not at all.

    Raises:
        UserError: If it cannot be written.
    """
    with output_file(path) as file:
        file.write(text)
