"""Locks folders to which only one process at a time may write; the lock ends with the process.

It is a POSIX lock on the file ``lock`` in the folder. Forked workers would inherit a ``flock``, and
would hold it after the writing process was killed.
"""

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator

from fairseq_mm.errors import UserError

logger = logging.getLogger(__name__)

# (process, folder): a POSIX lock does not exclude its own process
_held: set[tuple[int, str]] = set()


class FolderInUseError(UserError):
    """Error: another process has the lock of a folder."""


@contextlib.contextmanager
def locked_folder(folder: str) -> Iterator[None]:
    """Hold the lock of a folder in a ``with`` block; create the folder if it does not exist."""
    owner = (os.getpid(), os.path.realpath(folder))
    refusal = f"{folder}: another process is writing to it."
    if owner in _held:
        raise FolderInUseError(refusal)
    path = os.path.join(folder, "lock")
    while True:
        os.makedirs(folder, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            continue  # a writer that has just finished removed the folder
        try:
            _lock(handle, folder)
            if os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path)):
                break  # the locked file is still the folder's lock, and was not removed meanwhile
        except (BlockingIOError, PermissionError):  # POSIX allows EAGAIN and EACCES for a held lock
            os.close(handle)
            raise FolderInUseError(refusal) from None
        os.close(handle)
    # the handle stays open: closing any handle of the file ends a POSIX lock
    _held.add(owner)
    try:
        yield
    finally:
        _held.discard(owner)
        os.close(handle)


@contextlib.contextmanager
def only_writer(folder: str) -> Iterator[None]:
    """Hold the lock of a folder like :func:`locked_folder`; remove the file ``lock`` at the end."""
    with locked_folder(folder):
        try:
            yield
        finally:
            # while it is still locked: afterwards it could be the lock of the next writer
            with contextlib.suppress(OSError):
                os.remove(os.path.join(folder, "lock"))


def _lock(handle: int, folder: str) -> None:
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # some network file systems have no locks: most runs there have one writer all the same
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        logger.warning(
            f"{folder}: this file system has no locks. Make sure that no other process writes here."
        )
