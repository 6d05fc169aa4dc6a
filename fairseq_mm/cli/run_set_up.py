"""What subcommands do before their work: register with fairseq, and hold the folder they write."""

import contextlib
import logging
import warnings
from collections.abc import Iterator

from fairseq_mm.errors import UserError


def register_quietly() -> None:
    """Registers the package with fairseq, which logs and warns while it is imported.

    Raises:
        UserError: naming the remedy, if fairseq is missing or does not import.
    """
    logging.basicConfig(level=logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    import fairseq_mm

    try:
        fairseq_mm.register()
    except ImportError as error:
        raise UserError(str(error)) from None


@contextlib.contextmanager
def only_writer(folder: str) -> Iterator[None]:
    """Holds the output folder: two runs would end with files that one of them has emptied.

    Raises:
        UserError: if another process holds it, or it cannot be made.
    """
    from fairseq_mm.data import folder_lock

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folder_lock.only_writer(folder))
        except OSError as error:
            raise UserError(f"{folder}: cannot be made: {error.strerror}.") from None
        yield
