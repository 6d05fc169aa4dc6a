"""Upgrades a data folder of version 0.2, or of fairseq-preprocess, to files of records.

  fairseq-mm prepare upgrade data-bin/flickr8k

Each split becomes <split>.jsonl, with everything that was in files beside the binarised text; these
files and the folder text are removed. Dictionaries, binarised text and features stay. Folders that
are not upgraded can be read, too.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from fairseq_mm import __version__
from fairseq_mm.data.record_split import (
    CAPTIONS,
    Record,
    load_tokenizer,
    read_report,
    record_digests,
    write_report,
)
from fairseq_mm.data.records import ImportedSplit, open_split, split_names
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.data_folder import (
    finish_move,
    former_files,
    is_half_moved,
    locked_output,
    partial_folder,
)
from fairseq_mm.prepare.writer import json_line

# what prepare.json of version 0.2 says of files that are gone
_FORMER_FIELDS = ("command", "commands", "masked")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DATA", help="Data folder.")


def upgrade_folder(folder: Path) -> list[str]:
    """Write the splits of a data folder as records, in place; return the files that were written.

    If the run is killed, the folder stays as it was, or the next run completes it. The list is
    empty if there is nothing to do.
    """
    if is_half_moved(str(folder)):
        with locked_output(folder):
            finish_move(folder)
    splits = [open_split(folder, name) for name in split_names(folder)]
    if not splits:
        raise UserError(f"{folder}: is no data folder: it has no split.")
    imported = [split for split in splits if isinstance(split, ImportedSplit)]
    if not imported:
        return []
    kind = imported[0].kind.name
    records = {f"{split.name}.jsonl": split for split in imported}
    sides = imported[0].sides or ("txt",)
    former = {name for split in imported for name in former_files(split.name, sides)}
    report = {"kind": kind, **read_report(folder), "package_version": __version__}
    for name in _FORMER_FIELDS:
        report.pop(name, None)
    with partial_folder(folder, {*records, *former}, kind=kind, overwrite=True) as partial:
        for name, split in records.items():
            with open(partial / name, "w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{json_line(record)}\n" for record in _records(split))
        write_report(partial, report, ())
    record_digests(folder, [split.name for split in imported])
    return list(records)


def _records(split: ImportedSplit) -> Iterator[Record]:
    """Yield the records of a split, without tokens that the folder's tokenizer reproduces."""
    try:
        load_tokenizer(split.folder, split.kind)
    except UserError:  # of ptb, which reads whole files at once
        yield from split.iterate_records()
        return
    for record in split.iterate_records():
        tokens = record.pop("tokens")
        count = len(record["captions"]) if split.kind is CAPTIONS else 1
        made = [
            " ".join(split.tokenize(record, number, place))
            for number in range(count)
            for place in range(len(split.sides) or 1)
        ]
        is_same = made == ([tokens] if isinstance(tokens, str) else tokens)
        yield record if is_same else {**record, "tokens": tokens}
