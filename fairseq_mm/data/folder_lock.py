"""A folder that one process at a time may write to; the lock dies with the process.

It is a POSIX lock on the file ``lock`` in the folder and not a ``flock``: forked workers inherit
the latter, and would hold it after a kill of the process that writes.
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


@contextlib.contextmanager
def locked_folder(folder: str) -> Iterator[None]:
    """Holds the folder's lock, making the folder where needed.

    Raises:
        UserError: if somebody holds it.
        OSError: if the folder cannot be made or locked.
    """
    owner = (os.getpid(), os.path.realpath(folder))
    refusal = f"{folder}: another process is writing to it."
    if owner in _held:
        raise UserError(refusal)
    path = os.path.join(folder, "lock")
    while True:
        os.makedirs(folder, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            continue  # the folder was removed by a writer that finished this very moment
        try:
            _lock(handle, folder)
            if os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path)):
                break  # and not a lock that was removed meanwhile
        except (BlockingIOError, PermissionError):
            os.close(handle)
            raise UserError(refusal) from None
        os.close(handle)
    _held.add(owner)
    try:
        yield
    finally:
        _held.discard(owner)
        os.close(handle)


@contextlib.contextmanager
def only_writer(folder: str) -> Iterator[None]:
    """As :func:`locked_folder`, of a folder that stays: the lock's file is removed at the end.

    Raises:
        UserError: if somebody holds it.
        OSError: if the folder cannot be made or locked.
    """
    with locked_folder(folder):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.remove(os.path.join(folder, "lock"))


def _lock(handle: int, folder: str) -> None:
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        logger.warning(
            f"{folder}: this file system has no locks. Make sure that no other process writes here."
        )
