"""Files that appear when they are complete."""

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
    """A file to write UTF-8 text to: it is moved into place at the end, and gone after an error.

    A device or a pipe (``/dev/null``, ``/dev/stdout``) is written to as it is: a file that is moved
    there would take its place. A link stays, and the file that it points to is replaced.

    Raises:
        UserError: if it cannot be written.
    """
    path = os.fspath(path)
    try:
        if _is_device(path):
            with open(path, "a", encoding="utf-8", errors=errors) as file:
                yield file
            return
        target = os.path.realpath(path)
        if os.path.isdir(target):
            raise IsADirectoryError(0, "Is a directory")
        with partial_path(target) as partial:
            with open(partial, "w", encoding="utf-8", errors=errors, newline="\n") as file:
                yield file
            os.replace(partial, target)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}).") from None


@contextlib.contextmanager
def partial_path(target: str) -> Iterator[str]:
    """Where a file or folder stands until it is complete; what is left there at the end is removed.

    What killed writers of the same target have left is removed first: a process of this machine
    that no longer lives, or one of any machine that has written nothing for a day.

    Args:
        target: beside which it stands.
    """
    host = re.sub(r"[^\w-]", "-", platform.node())
    folder, name = os.path.split(os.path.abspath(target))
    with contextlib.suppress(OSError):
        for found in os.listdir(folder):
            match = found.startswith(f"{name}.") and _PARTIAL.fullmatch(found[len(name) :])
            if match:
                _remove_left(os.path.join(folder, found), int(match["pid"]), match["host"] == host)
    partial = f"{target}.{host}.{os.getpid()}.partial"
    try:
        yield partial
    finally:
        _remove(partial)


# versions before 0.2 had no machine in it
_PARTIAL = re.compile(r"\.(?:(?P<host>[\w-]*)\.)?(?P<pid>[0-9]{1,9})\.partial")
_DAY = 24 * 60 * 60


def _remove_left(path: str, process: int, is_of_this_machine: bool) -> None:
    with contextlib.suppress(OSError):
        is_gone = is_of_this_machine and not _lives(process)
        if is_gone or time.time() - os.path.getmtime(path) > _DAY:
            _remove(path)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.remove(path)


def write_file(path: Union[str, os.PathLike], text: str) -> None:
    """Writes a file whole or not at all.

    Raises:
        UserError: if it cannot be written.
    """
    with output_file(path) as file:
        file.write(text)


def _is_device(path: str) -> bool:
    is_special = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    # where /dev/stdout is a file, it is one that the shell has opened
    return is_special or os.path.abspath(path).startswith(("/dev/", "/proc/"))
