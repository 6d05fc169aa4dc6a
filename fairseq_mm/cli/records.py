"""Output files, progress bars and numbers of subcommands."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Optional, TextIO

from fairseq_mm.data.output_file import output_file


@contextlib.contextmanager
def open_output(path: Optional[str]) -> Iterator[TextIO]:
    """Open the file ``path`` for writing; the file appears only when it is complete.

    If ``path`` is None, yield standard output.
    """
    if path is None:
        yield sys.stdout
        return
    with output_file(path) as file:
        yield file


def progress_bar(total: int, unit: str, *, many: int = 50) -> Any:
    """Return a progress bar on stderr, which is shown only on a terminal.

    Args:
        total: Number of inputs.
        unit: Plural noun for the inputs, such as ``images``.
        many: Minimum number of inputs for which the bar is shown.
    """
    from tqdm.auto import tqdm

    # disable=None, unlike False, disables the bar if stderr is no terminal
    return tqdm(total=total, unit=f" {unit}", file=sys.stderr, disable=total < many or None)


def list_first(names: Sequence[str], count: int) -> str:
    """Join the first ``count`` names with commas, followed by dots if ``names`` has more."""
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def counted(number: int, one: str, several: Optional[str] = None) -> str:
    """Return a number with its noun: ``1 story``, ``1,200 stories``.

    By default, the plural ``several`` is the singular ``one`` with an ``s``.
    """
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
