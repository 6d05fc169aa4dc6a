"""Inputs and results of subcommands that generate texts, output files and progress bars."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional, TextIO

from fairseq_mm.data.output_file import output_file
from fairseq_mm.errors import UserError

# name of the references in tables and records
PEOPLE = "people"


class Item(NamedTuple):
    """Input of a command that generates texts.

    Attributes:
        index: Index of the input; the random numbers of ``--sampling`` depend on it.
        record: Fields of the input. If ``id`` is None, the index is the id.
        folder: Folder that paths in the record are relative to; None if the record has no paths.
        error: Reason why the input cannot be read, if it is already known; else None.
        where: Name of the input in messages (default: its id; empty for no name).
        value: Prompt that a language model has generated.
    """

    index: int  # type: ignore[assignment]
    record: dict[str, Any]
    folder: Optional[str] = ""
    error: Optional[UserError] = None
    where: Optional[str] = None
    value: Any = None

    @property
    def name(self) -> str:
        return str(self.where if self.record["id"] is None else self.record["id"])


class Result(NamedTuple):
    """Texts of one input.

    Attributes:
        item: The input.
        examples: Example of the input for each system.
        hypotheses: Hypotheses of each system, best first.
        fields: Further fields of each hypothesis in JSON records, for each system.
    """

    item: Item
    examples: list[Any]
    hypotheses: list[Any]
    fields: list[list[dict[str, Any]]]


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
