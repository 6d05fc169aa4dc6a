"""Records attention, gates and likelihood of a text, word by word, as JSON and
as a page.

  fairseq-mm inspect DATA --checkpoint conv_story_fusion --html story.html
  fairseq-mm inspect told.jsonl --checkpoint transtory_full
  fairseq-mm inspect DATA --checkpoint vg_bart --gates --html gates.html

SOURCE is a data folder, or a file written by `fairseq-mm tell --jsonl`. Without
--html the JSON goes to standard output. Stories of prompts have an object for
each word: log-probability, gates, attention to the prompt and to the story so
far (Fan et al. 2018, Figure 8). Each visual story has one object, with attention
to images or slices and similarities of grid positions (Li et al. 2020, Figures 4
and 5). Summaries have the attention to frames of each line or, with --gates, the
forget gate score of each video (Yu et al. 2021, section 5.4).
"""

import argparse
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import FLAG, POSITIVE, REPEATED, Rows, Rule
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.report.html_page import Section

# Kind of input -> options that not all kinds have. All options are in one parser, because only the
# checkpoint tells the kind.
OPTIONS = {
    "prompts": ("words", "layers"),
    "images": ("features", "weights", "images"),
    "videos": ("features", "layers", "gates", "hypotheses", "videos", "json"),
}

_RULES = (
    Rule("split", needs=("data",)),
    Rule("weights", excludes=("data",), because="no image is read where features are given"),
    Rule("images", needs=("html",)),
    Rule("videos", needs=("html",), excludes=("gates",)),
    Rule("json", needs=("gates",)),
    Rule("layers", excludes=("gates",), because="scores of gates have their layers in any case"),
)

_PROMPTS: Rows = {
    "--words": ("Maximum number of words (default: the model's positions).", POSITIVE),
    "--layers": ("Also write the attention of each layer to the prompt or to the frames.", FLAG),
}
_VIDEOS: Rows = {
    "--gates": ("Write forget gate scores, of all videos or of --lines.", FLAG),
    "--hypotheses": ("Generated summaries in place of the references.", {"metavar": "FILE"}),
    "--videos": (
        "Folder or .tar of videos, whose frames the page shows; repeatable.",
        {"metavar": "DIR", **REPEATED},
    ),
}


def _parse_numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number, or several with commas between them, but is {text!r}"
        ) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = "Data folder, or JSON lines of `fairseq-mm tell`."
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("source", nargs="?", metavar="SOURCE", help=source)
    arguments.add(group, "data", data={"help": "Data folder, instead of SOURCE."})
    arguments.add(
        parser,
        *("checkpoint", "split", "output", "html", "device", "features"),
        checkpoint={"help": "Checkpoint, or folder with checkpoint_best.pt."},
        split={"help": "Split of the data folder (default: valid)."},
        output={"help": "Write the JSON lines to this file."},
        html={"help": "Write a page that loads nothing to this file."},
    )
    parser.add_argument(
        *("--lines", "--line"),
        type=_parse_numbers,
        metavar="N,...",
        help="Lines of the split or file, counted from 0; one of stories of prompts (default: 0).",
    )
    arguments.add_rows(parser.add_argument_group("stories of prompts"), _PROMPTS)
    images = parser.add_argument_group("visual stories")
    arguments.add(images, "weights", "images")
    videos = parser.add_argument_group("summaries of videos")
    arguments.add_rows(videos, _VIDEOS)
    arguments.add(
        videos,
        "json",
        json={"help": "Write the statistics and the histogram of --gates as JSON to this file."},
    )


class Part(NamedTuple):
    """Result of the inspection of one text or video."""

    records: list[dict[str, Any]]  # JSON objects to write, one per line
    # function that makes the sections of the HTML page, called only if the page is written
    draw: "Callable[[], list[Section]]"


class Inspection(NamedTuple):
    """Output of ``fairseq-mm inspect``."""

    title: str
    subtitle: str
    # iterator over the parts of the output, because all parts may not fit into memory
    parts: Iterator[Part]
    # statistics for the file ``--json``; None if there are no statistics
    result: Optional[dict[str, Any]] = None
    # lines that describe ``result`` on a terminal; empty if there are no statistics
    lines: tuple[str, ...] = ()


def run(args: argparse.Namespace) -> None:
    arguments.check_outputs({name: getattr(args, name) for name in ("output", "html", "json")})
    if args.data is None and os.path.isdir(args.source):
        args.data = args.source
    arguments.check(args, _RULES)
    register_quietly()
    from fairseq_mm.inference.checkpoint import Checkpoint

    checkpoint = Checkpoint.open(args.checkpoint)
    kind = checkpoint.input_kind
    for name in dict.fromkeys(name for names in OPTIONS.values() for name in names):
        if name in arguments.given_options(args) and name not in OPTIONS[kind]:
            raise UserError(
                f"{arguments.flag(name)}: is no option of models of {kind}, such as "
                f"{checkpoint.path}."
            )
    # Each of the modules imports a large part of the package, and only one is needed.
    module = importlib.import_module(f"fairseq_mm.cli.inspect_{kind}")
    _write(args, module.inspect(args, checkpoint))


def check_line(line: int, total: int, path: str) -> None:
    """Raise a UserError unless 0 <= ``line`` < ``total``, the number of lines of ``path``."""
    if not 0 <= line < total:
        raise UserError(f"--lines must be from 0 to {total - 1} ({path}), but is {line} instead.")


def read_told_line(path: str, line: int, parse: Callable[[Any], Any], needed: str) -> Any:
    """Return a parsed line of a file that ``fairseq-mm tell --jsonl`` has written.

    Args:
        line: Number of the line, counted from 0; blank lines are not counted.
        parse: Function that is applied to the JSON value of the line.
        needed: Names of the fields that ``parse`` needs, for the end of an error message.
    """
    from fairseq_mm.data.input_files import parse_json, read_lines

    lines = [(number, text) for number, text in read_lines(Path(path)) if text.strip()]
    check_line(line, len(lines), path)
    number, text = lines[line]
    # These are raised for text that is not JSON, a missing field, or a field of a wrong type.
    try:
        return parse(parse_json(text))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{path}:{number}: must be a line of `fairseq-mm tell --jsonl`{needed}"
        ) from None


def _write(args: argparse.Namespace, inspection: Inspection) -> None:
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
