"""Errors that a user can cause: one line, exit status 2, no traceback.

Raise :class:`UserError` where the offending value is used. It is a ``ValueError``, so that
callers of the Python API can catch it as such; at the top of a program (``fairseq-mm``, and
``fairseq-train`` and the like with this plugin) it ends the process with its message alone.
"""

import importlib
import sys
from types import ModuleType, TracebackType
from typing import Optional

EXIT_STATUS = 2


class UserError(ValueError):
    """What, where, expected, found: in one line.

    Args:
        message: ``path:line: what is wrong`` for files, ```name` must be X, but is Y instead.``
            for arguments. Line breaks are folded, so that it stays one line.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(str(message).split()))


def import_extra(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Imports an optional dependency.

    Args:
        module: name to import, such as ``pycocoevalcap``.
        extra: the extra of this package that brings it, such as ``eval``.
        purpose: what needs it, for the message.

    Raises:
        UserError: naming the ``pip install`` that helps, if the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{purpose} needs the package {module.split('.')[0]}, which cannot be imported "
            f"({error}). Install it with: pip install 'fairseq-mm[{extra}]'"
        ) from None


def _message_of(error: Optional[BaseException]) -> Optional[str]:
    """The user's message in ``error``: its own, that of what it was raised from (fairseq wraps
    whatever fails while a checkpoint loads), or what a worker process printed of it."""
    marker = f"{UserError.__module__}.{UserError.__name__}: "
    while error is not None:
        lines = [line for line in str(error).splitlines() if line.startswith(marker)]
        if lines:
            return lines[-1][len(marker) :]
        if isinstance(error, UserError):
            # torch's data loader puts the worker's traceback into the message, on one line here
            return str(error).split(marker)[-1]
        error = error.__cause__ or error.__context__
    return None


def is_user_error(error: BaseException) -> bool:
    """Whether the line of a :class:`UserError` is what a program says of ``error``."""
    return _message_of(error) is not None


def report_on_exit() -> None:
    """Makes an uncaught :class:`UserError` print its line and exit with status 2."""
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: Optional[TracebackType]
    ) -> None:
        message = _message_of(error)
        if message is None:
            previous(kind, error, traceback)
            return
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(EXIT_STATUS)

    sys.excepthook = hook
