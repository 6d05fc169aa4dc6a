"""Prints the folder of this package, for --user-dir of fairseq's commands.

  fairseq-train --user-dir "$(fairseq-mm user-dir)"

The folder depends on where the package is installed.
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments: only the interface of subcommands needs this function."""


def run(args: argparse.Namespace) -> None:
    print(Path(__file__).resolve().parents[1])
