"""Writes the output of ``fairseq-mm inspect``: JSON lines, an HTML page, and statistics."""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from fairseq_mm.data.input_files import parse_json, read_lines
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.report.html_page import Section


class Part(NamedTuple):
    """Output of ``fairseq-mm inspect`` for one text or video.

    Attributes:
        records: JSON objects to write, one per line.
        draw: Function that makes the sections of the HTML page, called only if the page is written.
    """

    records: list[dict[str, Any]]
    draw: "Callable[[], list[Section]]"


class Inspection(NamedTuple):
    """Output of ``fairseq-mm inspect``.

    Attributes:
        parts: Iterator over the parts of the output, because all parts may not fit into memory.
        result: Statistics for the file ``--json``; None if there are no statistics.
        lines: Lines that describe ``result`` on a terminal; empty if there are no statistics.
    """

    title: str
    subtitle: str
    parts: Iterator[Part]
    result: Optional[dict[str, Any]] = None
    lines: tuple[str, ...] = ()


def check_line(line: int, total: int, path: Any) -> None:
    """Raise a UserError unless 0 <= ``line`` < ``total``, the number of lines of ``path``."""
    if not 0 <= line < total:
        raise UserError(f"--lines must be from 0 to {total - 1} ({path}), but is {line} instead.")


def read_told_lines(
    path: str, wanted: Sequence[int], parse: Callable[[Any], Any], needed: str
) -> Iterator[tuple[int, Any]]:
    """Read lines of a file that ``fairseq-mm tell --jsonl`` has written.

    Args:
        wanted: Numbers of the lines to read, counted from 0; blank lines are not counted.
        parse: Function that is applied to the JSON value of each line.
        needed: Names of the fields that ``parse`` needs, as the end of an error message.

    Yields:
        Number of the line, and the result of ``parse``.
    """
    lines = [(number, text) for number, text in read_lines(Path(path)) if text.strip()]
    for line in wanted:
        check_line(line, len(lines), path)
        number, text = lines[line]
        # These are raised for text that is not JSON, a missing field, or a field of a wrong type.
        try:
            value = parse(parse_json(text))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"{path}:{number}: must be a line of `fairseq-mm tell --jsonl`{needed}"
            ) from None
        yield line, value


def write_inspection(args: argparse.Namespace, inspection: Inspection) -> None:
    """Write the files of the options ``--output`` (JSON lines), ``--html`` and ``--json``.

    Without these options, the JSON lines are written to standard output.
    """
    from fairseq_mm.data.output_file import output_file
    from fairseq_mm.report.html_page import render_page, write_page

    sections: list[Section] = []
    # If there are files to write, standard output is for the description of --gates.
    to_stdout = not (args.output or args.html or args.json)
    file: Any = sys.stdout
    # The file appears only when the last part is written, so that it is never incomplete.
    with contextlib.ExitStack() as stack:
        if args.output:
            file = stack.enter_context(output_file(args.output))
        for part in inspection.parts:
            if args.output or to_stdout:
                file.writelines(json.dumps(x, ensure_ascii=False) + "\n" for x in part.records)
            if args.html:
                sections += part.draw()
    if args.html:
        page = render_page(inspection.title, sections, subtitle=inspection.subtitle)
        write_page(Path(args.html), page)
    if args.json:
        with output_file(args.json) as file:
            file.write(json.dumps(inspection.result, ensure_ascii=False, indent=1) + "\n")
    for path in (args.output, args.html, args.json):
        if path:
            print(f"wrote {path}", file=sys.stderr)
    if inspection.lines and not to_stdout:
        print("\n".join(inspection.lines))
