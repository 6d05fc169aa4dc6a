"""Print the folder that fairseq's commands get as --user-dir.

  fairseq-train --user-dir "$(fairseq-mm user-dir)"

It is the package's own, wherever that is installed.
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(args: argparse.Namespace) -> None:
    print(Path(__file__).resolve().parents[1])
