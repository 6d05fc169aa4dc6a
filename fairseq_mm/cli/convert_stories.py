"""Runs ``fairseq-mm convert`` from fairseq's story model ``fconv_self_att`` to ``conv_story``."""

import argparse
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fairseq_mm.cli.arguments import FLAG, Rows, flag
from fairseq_mm.errors import UserError

_LISTED = 8  # number of names above which names that differ in numbers become one line
_FILE = {"metavar": "FILE"}
ARGUMENTS: Rows = {
    "--source-dictionary": ("Dictionary of the prompts, instead of the one of --data.", _FILE),
    "--target-dictionary": ("Dictionary of the stories, instead of the one of --data.", _FILE),
    "--pretrained-checkpoint": (
        "Checkpoint of fairseq's on which a fusion model was trained, for its dropout and heads, "
        "which the fusion checkpoint lacks.",
        _FILE,
    ),
    # no default: an option that has a value counts as given, and other kinds of SOURCE refuse it
    "--compat": (
        "Attention to the prompt's padding: released, to reproduce the numbers of fairseq's model, "
        "or none (default: released).",
        {"choices": ("released", "none")},
    ),
    "--layers-from-weights": (
        "Take layers and sizes from the weights, not from the checkpoint's options.",
        FLAG,
    ),
    "--allow-unexpected": ("Convert even if tensors of the checkpoint have no place.", FLAG),
}
OPTIONS = tuple(name[2:].replace("-", "_") for name in ARGUMENTS)


def run(args: argparse.Namespace, state: Mapping[str, Any]) -> None:
    """Convert the checkpoint ``args.source``; ``state`` is its loaded content."""
    from fairseq_mm.conversion import stories as converting

    _check_output(args)
    checkpoint = converting.fairseq_stories(args.source, state)
    pretrained = None
    # fairseq's fusion checkpoint has the frozen weights, but not their dropout and heads
    if args.pretrained_checkpoint:
        pretrained = converting.read_fairseq_stories(args.pretrained_checkpoint)
    files = _dictionary_files(args, checkpoint.languages)
    dictionaries = converting.load_story_dictionaries(*files, checkpoint.types, args.source)
    result = converting.convert_stories(
        checkpoint,
        *dictionaries,
        compat=args.compat or "released",
        layers_from_weights=args.layers_from_weights,
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
        hint = "no layers of fconv_self_att have weights of these shapes"
        if result.fitting_options:
            options = " ".join(_flag(x, value) for x, value in result.fitting_options.items())
            name = converting.architecture_name({**result.options, **result.fitting_options})
            hint = f"its weights fit --arch {name} {options}: convert with --layers-from-weights"
        raise UserError(
            f"{args.source}: {len(conversion.missing)} tensors are missing and "
            f"{len(conversion.mismatched)} have other shapes than its options say; {hint}."
        )
    if conversion.unexpected and not args.allow_unexpected:
        raise UserError(
            f"{args.source}: {len(conversion.unexpected)} tensors have no place, so that the "
            "converted model may compute something else; --allow-unexpected converts it "
            "nevertheless."
        )
    converting.save_checkpoint(result.state, args.output)
    parameters = sum(x.numel() for x in conversion.weights.values())
    print(f"{args.output}: --arch {result.arch}, {parameters:,} parameters")
    print(f"options: {' '.join(_flag(name, value) for name, value in result.options.items())}")
    if result.frozen_options:
        options = " ".join(_flag(name, value) for name, value in result.frozen_options.items())
        print(f"frozen part: {options}")


def _check_output(args: argparse.Namespace) -> None:
    """Raise UserError if the output cannot be written, or exists and ``--overwrite`` is not given.

    This is checked before the conversion, which takes minutes.
    """
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


def _dictionary_files(args: argparse.Namespace, languages: tuple[str, str]) -> list[str]:
    files = []
    for side, language in zip(("source", "target"), languages):
        file = getattr(args, f"{side}_dictionary")
        if not file and not args.data:
            raise UserError(
                f"--data DIR or --{side}-dictionary FILE is needed: the new checkpoint carries "
                "its dictionaries."
            )
        files.append(file or os.path.join(args.data, f"dict.{language}.txt"))
    return files


def _flag(name: str, value: Any) -> str:
    # layers are Python expressions with spaces, which a shell would split
    text = f"'{value}'" if " " in str(value) else value
    return f"{flag(name)} {text}"


def _table(num_tensors: int, conversion: Any) -> list[str]:
    """Return the lines of a table with the numbers of read, converted, ... and mismatched tensors.

    Below each number except the first two, the tensors are listed. ``num_tensors`` is the number of
    tensors in the checkpoint, ``conversion`` the result of the conversion.
    """
    left_out = conversion.left_out
    lines = [
        f"{'tensors':<12}{'number':>7}",
        f"{'read':<12}{num_tensors:>7}",
        f"{'converted':<12}{len(conversion.used):>7}  into {len(conversion.weights)} tensors",
        f"{'left out':<12}{sum(map(len, left_out.values())):>7}",
    ]
    for reason, names in left_out.items():
        lines += _fold((f"  {name}", f": {reason}") for name in names)
    for title in ("missing", "unexpected"):
        names = getattr(conversion, title)
        lines.append(f"{title:<12}{len(names):>7}")
        lines += _fold((f"  {name}", "") for name in names)
    lines.append(f"{'mismatched':<12}{len(conversion.mismatched):>7}")
    lines += _fold(
        (f"  {name}", f": {list(shape)} in the checkpoint, {list(expected)} by its options")
        for name, shape, expected in conversion.mismatched
    )
    return lines


def _fold(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Format pairs (name of a tensor, rest of the line) as lines.

    If there are more than ``_LISTED`` pairs, tensors whose names differ only in the number of a
    layer share one line.
    """
    # a model of 15 layers has hundreds of tensors, which differ in the number of their layer
    rows = list(rows)
    if len(rows) <= _LISTED:
        return [name + rest for name, rest in rows]
    counts: dict[tuple[str, str], list[str]] = {}
    for name, rest in rows:
        counts.setdefault((re.sub(r"(?<=\.)\d+(?=\.)", "*", name), rest), []).append(name)
    return [
        f"{pattern} ({len(names)}){rest}" if len(names) > 1 else names[0] + rest
        for (pattern, rest), names in counts.items()
    ]
