"""Text files that appear when they are complete."""

import contextlib
import os
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
        partial = f"{target}.{os.getpid()}.partial"
        try:
            with open(partial, "w", encoding="utf-8", errors=errors, newline="\n") as file:
                yield file
            os.replace(partial, target)
        finally:
            with contextlib.suppress(OSError):
                os.remove(partial)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}).") from None


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
