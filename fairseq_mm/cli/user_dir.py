"""Prints the folder to give to fairseq's commands: --user-dir "$(fairseq-mm user-dir)"."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(args: argparse.Namespace) -> None:
    print(Path(__file__).resolve().parents[1])
