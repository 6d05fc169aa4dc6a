"""Safe reading of pickles of plain content: containers, numbers, arrays and options.

A pickle can call any function. The unpickler used here accepts the classes of such content, as
Python 2 or 3 and any numpy write them, and refuses everything else.
"""

import os
from collections.abc import Mapping
from typing import Any, Optional

from fairseq_mm.compat.unpickling import VALUES, RestrictedUnpickler, reason_of
from fairseq_mm.errors import UserError


def read_plain_pickle(
    path: str, *, stand_ins: Optional[Mapping[tuple[str, str], Any]] = None
) -> Any:
    """Read a pickle without running code.

    Args:
        path: Path of the pickle.
        stand_ins: (module, name) of a class -> function that makes the replacement of its objects.

    Returns:
        Content of the pickle. Byte strings of Python 2 become text, see :func:`repaired_text`.

    Raises:
        UserError: if the file is missing or damaged, or needs anything but plain values.
    """
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file.")
    try:
        with open(path, "rb") as file:
            # Python 2's byte strings, which are text, and numpy's arrays in them
            table = {**VALUES, **(stand_ins or {})}
            return RestrictedUnpickler(file, table, encoding="latin1").load()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except Exception as error:  # pickle raises nearly anything on other files
        raise UserError(
            f"{path}: is no pickle that can be read safely (containers, numbers and options, "
            f"nothing that runs): {reason_of(error)}."
        ) from None


def repaired_text(text: str) -> str:
    """Decode a byte string of Python 2, which was read as Latin-1, as UTF-8."""
    try:
        return text.encode("latin1").decode("utf-8")
    except UnicodeError:
        return text
