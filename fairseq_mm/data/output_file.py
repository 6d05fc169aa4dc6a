"""Writes output files that appear only when they are complete."""

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
    """Open a UTF-8 text file that is moved to ``path`` when it is complete, and removed after an
    error.

    A device or a pipe (``/dev/null``, ``/dev/stdout``) is written directly. A symbolic link stays,
    and the file to which it points is replaced. ``errors`` says how characters that cannot be
    encoded are handled, as in :func:`open`.
    """
    path = os.fspath(path)
    try:
        # os.replace would put a regular file in the place of a device or a pipe
        is_special = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
        # /dev/stdout can be a regular file that the shell opened with > or >>: opened with "w", it
        # would lose earlier output
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
    """Yield a temporary path next to ``target`` for an incomplete file or folder; remove this file
    or folder at the end.

    First, remove temporary files that killed writers of ``target`` have left: files whose process
    on this machine has ended, and files unchanged for a day.
    """
    # the name of the machine: process ids are unique only there, and folders may be shared (NFS)
    host = re.sub(r"[^\w-]", "-", platform.node())
    folder, name = os.path.split(os.path.abspath(target))
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            match = entry.startswith(f"{name}.") and _PARTIAL.fullmatch(entry[len(name) :])
            # another run may remove the same file first
            with contextlib.suppress(OSError):
                path = os.path.join(folder, entry)
                is_gone = False
                if match and match["host"] == host:
                    try:
                        os.kill(int(match["pid"]), 0)  # signal 0 is never delivered
                    except OSError as error:  # else the process belongs to another user
                        is_gone = isinstance(error, ProcessLookupError)
                if is_gone or (match and time.time() - os.path.getmtime(path) > _DAY):
                    _remove(path)
    partial = f"{target}.{host}.{os.getpid()}.partial"
    try:
        yield partial
    finally:
        _remove(partial)


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Turn errors of PyTorch and safetensors in writing a file, as on a full disk, into
    OSErrors."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        # PyTorch raises a RuntimeError, safetensors a class of its own
        if not isinstance(error, RuntimeError) and type(error).__name__ != "SafetensorError":
            raise
        raise OSError(0, str(error).splitlines()[0].rstrip(".")) from None


# versions before 0.2 wrote no machine name
_PARTIAL = re.compile(r"\.(?:(?P<host>[\w-]*)\.)?(?P<pid>[0-9]{1,9})\.partial")
# age at which a file counts as left behind: whether a process of another machine runs is unknown
_DAY = 24 * 60 * 60


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.remove(path)


def write_file(path: Union[str, os.PathLike], text: str) -> None:
    """Write ``text`` to a file completely or not at all."""
    with output_file(path) as file:
        file.write(text)
