"""JSON records, output files and progress bars of subcommands that generate texts."""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, TextIO

from fairseq_mm.data.output_file import output_file
from fairseq_mm.inference.records import build_record

# for annotations alone: this module imports torch, which takes seconds
if TYPE_CHECKING:
    from fairseq_mm.inference.hypothesis import Hypothesis


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


def json_line(
    name: Any,
    hypotheses: "Sequence[Hypothesis]",
    others: Mapping[str, Any],
    *,
    as_line: bool = False,
    each: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the result of :func:`.build_record` as a line of JSON."""
    record = build_record(name, hypotheses, others, as_line=as_line, each=each)
    return json.dumps(record, ensure_ascii=False)


def rank_fields(args: argparse.Namespace, hypotheses: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the fields of ``--best-of`` in each hypothesis's record; empty without this option.

    The fields are ``rank``, ``candidates`` (their number) and ``best_by`` (method of ranking).
    """
    if args.best_of is None:
        return []
    return [
        {"rank": number, "candidates": args.best_of, "best_by": args.best_by or "score"}
        for number in range(1, len(hypotheses) + 1)
    ]


def heading(index: int, title: str) -> str:
    """Return the heading line of a story: its index and, if it has one, its title."""
    title = " ".join(title.split())
    return f"=== {index}{': ' if title else ''}{title} ===\n"


def list_first(names: Sequence[str], count: int) -> str:
    """Join the first ``count`` names with commas, followed by dots if ``names`` has more."""
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def counted(number: int, one: str, several: Optional[str] = None) -> str:
    """Return a number with its noun: ``1 story``, ``1,200 stories``.

    By default, the plural ``several`` is the singular ``one`` with an ``s``.
    """
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
