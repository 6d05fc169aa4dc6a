"""Checks the installation, a data folder, feature stores and a checkpoint, and
names remedies.

  fairseq-mm doctor
  fairseq-mm doctor --data data-bin/flickr8k --checkpoint checkpoints/m_rnn

The task of the data folder is set up as in fairseq-train, and the splits are
loaded. The model of the checkpoint is built in this task as in
fairseq-generate; without --data, it is built from the checkpoint alone.
Nothing is downloaded.

The files of a data folder are compared with the digests that fairseq-mm
prepare has recorded in prepare.json. --repair adds missing digests if the
folder has no other problem; --accept-changes also replaces digests that differ.

Each finding is a line: "ok", "note" (something optional is missing) or
"PROBLEM"; notes and problems have a remedy behind "->". The exit status is 2 if
there is a problem. The command also works if fairseq, or any other package, is
missing or broken.
"""

import argparse
import logging
import os
import warnings
from collections.abc import Iterator

from fairseq_mm.cli import arguments
from fairseq_mm.cli import doctor_environment as environment
from fairseq_mm.cli.doctor_checkpoint import check_checkpoint
from fairseq_mm.cli.doctor_data import check_data, check_features, check_file_types, needs_features
from fairseq_mm.cli.doctor_digests import FolderDigests
from fairseq_mm.cli.doctor_environment import Finding
from fairseq_mm.data.prepared_files import unchecked
from fairseq_mm.errors import EXIT_STATUS, UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add(
        parser,
        *("data", "features", "checkpoint", "weights"),
        features={
            "help": f"Feature store; several are separated by {os.pathsep!r} (default: features.h5 "
            "in a data folder of images or videos)."
        },
        checkpoint={
            "required": False,
            "help": "Checkpoint, or folder with checkpoint_best.pt or else checkpoint_last.pt.",
        },
    )
    arguments.add_rows(
        parser,
        {
            "--repair": ("Add the digests that prepare.json of --data lacks.", arguments.FLAG),
            "--accept-changes": (
                "With --repair: replace the digests of files that were changed on purpose.",
                arguments.FLAG,
            ),
        },
    )


def run(args: argparse.Namespace) -> int:
    if args.weights and not args.checkpoint:
        raise UserError("--weights: needs --checkpoint, whose extractor it belongs to.")
    if args.repair and not args.data:
        raise UserError("--repair: needs --data, the folder whose digests are recorded.")
    if args.accept_changes and not args.repair:
        raise UserError("--accept-changes: needs --repair, which records the changes.")
    # Tasks log while they are set up, and packages warn; both would mix with the findings.
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    num_problems = 0
    for finding in _findings(args):
        num_problems += finding.level == "PROBLEM"
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        line = f"{finding.level:<8} {finding.subject}: {finding.text}{remedy}"
        # Errors of torch have several lines, but a finding is one line. It is flushed, so that
        # the last line before a crash shows where the crash happened.
        print(" ".join(line.splitlines()), flush=True)
    plural = "" if num_problems == 1 else "s"
    print(f"{num_problems} problem{plural} found" if num_problems else "no problem found")
    return EXIT_STATUS if num_problems else 0


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    yield from _check_environment()
    digests = None
    if args.data:
        # This check comes before any file is opened: reading a pipe would wait for ever.
        unreadable = list(check_file_types(args.data))
        if unreadable:
            yield from unreadable
            return
        digests = FolderDigests(args.data, repair=args.repair, accept=args.accept_changes)
        yield from digests.check()
    store, is_readable, num_problems = None, True, 0
    # Readers compare digests, too, and refuse a file that differs. All files have been compared
    # above, and here a file that differs is still examined.
    with unchecked():
        if args.features is not None or (args.data and needs_features(args.data)):
            store, findings = check_features(args.data, args.features)
            is_readable = store is not None
            num_problems += not is_readable
            yield from findings
        if digests is not None:
            if store is not None:
                yield from digests.check_store(store)
            for finding in check_data(
                args.data, args.features, is_readable=is_readable, is_aligned=digests.is_whole
            ):
                num_problems += finding.level == "PROBLEM"
                yield finding
            # This comes last, because the digests of a damaged folder must not be recorded.
            yield from digests.mend(is_sound=not num_problems)
        if args.checkpoint:
            yield from check_checkpoint(
                args.checkpoint, args.data, args.features, store, args.weights
            )


def _check_environment() -> Iterator[Finding]:
    yield environment.check_python()
    for name in ("numpy", "h5py", "torch", "torchvision"):
        yield environment.check_package(name)
    yield from environment.check_torchvision_fits()
    yield from environment.check_fairseq()
    yield environment.check_program("g++", "building fairseq", "apt install g++")
    yield from map(environment.check_extra, environment.EXTRAS)
    yield environment.check_device()
