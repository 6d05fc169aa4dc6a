"""Errors that a user can cause: one line, exit status 2, no traceback.

Raise :class:`UserError` where the offending value is used. The class is a ``ValueError``, so that
callers of the Python API can catch it. In ``fairseq-mm``, and in fairseq's commands with
``--user-dir fairseq_mm``, the error ends the process and only its message is printed.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType, TracebackType
from typing import Optional, Union

EXIT_STATUS = 2


class UserError(ValueError):
    """Error that a user can cause, with a message of one line.

    Args:
        message: By convention, ``path:line: problem`` if a file is wrong, and
            ```name` must be X, but is Y instead.`` if an argument is wrong. Line breaks become
            spaces.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(str(message).split()))


class WeightsError(UserError):
    """Error in the weights of a checkpoint; the code that opened the file adds its path."""


def is_verbose() -> bool:
    """Return True if the environment variable ``FAIRSEQ_MM_VERBOSE`` is set, but not to 0. All
    messages of fairseq and its libraries are then shown."""
    return os.environ.get("FAIRSEQ_MM_VERBOSE", "") not in ("", "0")


def import_extra(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency.

    Args:
        module: Name of the module, such as ``pycocoevalcap``.
        extra: Name of this package's extra that installs the module, such as ``eval``.
        purpose: Feature that needs the module, for the message.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{purpose} needs the package {module.split('.')[0]}, which cannot be imported "
            f"({error}). Install it with: pip install 'fairseq-mm[{extra}]'"
        ) from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters of it.

    If the message is empty, return the name of the error's class.
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def describe_error(error: BaseException) -> str:
    """Describe an error for a message: by the system's text for an OSError, otherwise by the first
    line of its message, with its class's name in front if that helps."""
    if strerror := getattr(error, "strerror", None):  # also FFmpeg's errors have it
        return str(strerror)
    text, kind = first_line(error), type(error).__name__
    if isinstance(error, (OSError, ValueError, RuntimeError)) or text == kind:
        return text.rstrip(".")
    return f"{kind}: {text}"


@contextlib.contextmanager
def file_errors(
    path: object = "",
    problem: str = "cannot be read",
    kinds: Union[type[Exception], tuple[type[Exception], ...]] = Exception,
) -> Iterator[None]:
    """Turn errors inside the context into a UserError with a file's path, the ``problem``, and the
    message of the library that reads or writes the file; a :class:`UserError` is not changed."""
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        where = f"{path}: " if path else ""
        raise UserError(f"{where}{problem} ({describe_error(error)}).") from error


def find_message(error: Optional[BaseException]) -> Optional[str]:
    """Return the message if ``error`` is, or was caused by, a :class:`UserError`; else None."""
    # fairseq wraps any error that occurs while a checkpoint loads, and a worker process sends the
    # traceback as text
    marker = f"{UserError.__module__}.{UserError.__name__}: "
    while error is not None:
        lines = [line for line in str(error).splitlines() if line.startswith(marker)]
        if lines:
            return lines[-1].split(marker)[-1]
        if isinstance(error, UserError):
            # torch's data loader puts the worker's traceback into the message, on one line here
            return str(error).split(marker)[-1]
        # only an error that was raised on purpose: another one that happens while it is handled is
        # a bug, and keeps its traceback
        is_wrapped = type(error) is Exception and str(error).startswith("Cannot load model")
        error = error.__context__ if is_wrapped else error.__cause__
    return None


def report_on_exit() -> None:
    """Make the process end with one line and exit status 2 after an uncaught :class:`UserError`.

    This replaces ``sys.excepthook``.
    """
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: Optional[TracebackType]
    ) -> None:
        message = find_message(error)
        if isinstance(error, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
            raise SystemExit(130)
        if message is None:
            # a debugger or a notebook may have a hook of its own
            previous(kind, error, traceback)
            return
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(EXIT_STATUS)

    sys.excepthook = hook
