"""Main functions of the programs in ``scripts/`` and ``examples/``."""

import argparse
import logging
import sys
from typing import Callable, Optional

from fairseq_mm.cli.main import Parser, exit_status


def run_script(
    description: Optional[str],
    add_arguments: list[Callable[[argparse.ArgumentParser], None]],
    run: Callable[[argparse.Namespace], int],
) -> int:
    """Parse the command line by the functions ``add_arguments``, ``run`` the program, whose help is
    its docstring ``description``, and return its exit status."""
    parser = Parser(description=description)
    for add in add_arguments:
        add(parser)
    args = parser.parse_args()
    # importing fairseq sets the root logger to INFO, and every library would report its work
    logging.getLogger().setLevel(logging.WARNING)
    try:
        return exit_status(parser.prog, lambda: run(args))
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130  # as a shell reports SIGINT
