"""Runs ``fairseq-mm convert`` from fairseq's story model ``fconv_self_att`` to ``conv_story``."""

import argparse
import os
from collections.abc import Mapping
from typing import Any

from fairseq_mm.cli.arguments import Rows, flag
from fairseq_mm.errors import UserError

_LISTED = 8  # names of a kind of tensors
ARGUMENTS: Rows = {
    "--pretrained-checkpoint": (
        "Checkpoint of fairseq's on which a fusion model was trained, for its dropout and heads, "
        "which the fusion checkpoint lacks.",
        {"metavar": "FILE"},
    ),
    # no default: an option that has a value counts as given, and other kinds of SOURCE refuse it
    "--compat": (
        "Attention to the prompt's padding: released, to reproduce the numbers of fairseq's model, "
        "or none (default: released).",
        {"choices": ("released", "none")},
    ),
}
OPTIONS = tuple(name[2:].replace("-", "_") for name in ARGUMENTS)


def run(args: argparse.Namespace, state: Mapping[str, Any]) -> None:
    """Convert the checkpoint ``args.source``; ``state`` is its loaded content."""
    from fairseq_mm.conversion import stories as converting
    from fairseq_mm.conversion.foreign_checkpoint import read_foreign_checkpoint

    _check_output(args)
    checkpoint = converting.fairseq_stories(args.source, state)
    pretrained = None
    # fairseq's fusion checkpoint has the frozen weights, but not their dropout and heads
    if args.pretrained_checkpoint:
        path = args.pretrained_checkpoint
        pretrained = converting.fairseq_stories(path, read_foreign_checkpoint(path))
    if not args.data:
        raise UserError("--data DIR is needed: the new checkpoint carries its dictionaries.")
    source, target = checkpoint.languages
    files = (os.path.join(args.data, f"dict.{source}.txt"),)
    files += (os.path.join(args.data, f"dict.{target}.txt"),)
    dictionaries = converting.load_story_dictionaries(files, checkpoint.types, args.source)
    result = converting.convert_stories(
        checkpoint,
        *dictionaries,
        compat=args.compat or "released",
        pretrained=pretrained,
    )
    conversion = result.conversion
    print(f"{args.source}: --arch {checkpoint.arch}, {checkpoint.num_updates} updates")
    for line in _table(len(checkpoint.weights), conversion):
        print(line)
    # before the errors below, whose causes the table and the notes show
    for note in result.notes:
        print(f"note: {note}")
    if result.state is None:
        raise UserError(
            f"{args.source}: {len(conversion.missing)} tensors are missing and "
            f"{len(conversion.mismatched)} have other shapes than its options say."
        )
    if conversion.unexpected:
        raise UserError(
            f"{args.source}: {len(conversion.unexpected)} tensors have no place, so that the "
            "converted model would compute something else."
        )
    converting.save_checkpoint(result.state, args.output)
    parameters = sum(x.numel() for x in conversion.weights.values())
    print(f"{args.output}: --arch {result.arch}, {parameters:,} parameters")
    print(f"options: {' '.join(_flag(name, value) for name, value in result.options.items())}")
    if result.frozen_options:
        options = " ".join(_flag(name, value) for name, value in result.frozen_options.items())
        print(f"frozen part: {options}")


def _check_output(args: argparse.Namespace) -> None:
    """Raise UserError if the output cannot be written, or exists without ``--overwrite``."""
    folder = os.path.dirname(os.path.abspath(args.output))
    if not os.path.isdir(folder):
        raise UserError(f"{args.output}: there is no folder {folder}.")
    if os.path.isdir(args.output):
        raise UserError(f"{args.output}: is a folder; name a file.")
    if os.path.exists(args.output) and not os.path.isfile(args.output):
        raise UserError(f"{args.output}: is a device or a pipe; name a file.")
    inputs = filter(None, (args.source, args.pretrained_checkpoint))
    # realpath: a link to the source would otherwise destroy it, --overwrite or not
    if os.path.realpath(args.output) in map(os.path.realpath, inputs):
        raise UserError(f"{args.output}: would overwrite a file that is read.")
    if os.path.exists(args.output) and not args.overwrite:
        raise UserError(f"{args.output}: exists already; --overwrite replaces it.")


def _flag(name: str, value: Any) -> str:
    # layers are Python expressions with spaces, which a shell would split
    text = f"'{value}'" if " " in str(value) else value
    return f"{flag(name)} {text}"


def _table(num_tensors: int, conversion: Any) -> list[str]:
    """Return a table with the numbers of read, converted, ... and mismatched tensors."""
    left_out = conversion.left_out
    lines = [
        f"{'tensors':<12}{'number':>7}",
        f"{'read':<12}{num_tensors:>7}",
        f"{'converted':<12}{len(conversion.used):>7}  into {len(conversion.weights)} tensors",
        f"{'left out':<12}{sum(map(len, left_out.values())):>7}",
    ]
    for reason, names in left_out.items():
        lines += _first([f"  {name}: {reason}" for name in names])
    for title in ("missing", "unexpected"):
        names = getattr(conversion, title)
        lines.append(f"{title:<12}{len(names):>7}")
        lines += _first([f"  {name}" for name in names])
    lines.append(f"{'mismatched':<12}{len(conversion.mismatched):>7}")
    return lines + _first(
        [
            f"  {name}: {list(shape)} in the checkpoint, {list(expected)} by its options"
            for name, shape, expected in conversion.mismatched
        ]
    )


def _first(lines: list[str]) -> list[str]:
    # a model of 15 layers has hundreds of tensors
    more = len(lines) - _LISTED
    return lines[:_LISTED] + [f"  and {more} more"] * (more > 0)
