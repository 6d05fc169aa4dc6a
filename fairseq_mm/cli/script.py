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
    """Parse the command line, run a program and return its exit status.

    Args:
        description: Docstring of the program, for its help text.
        add_arguments: Functions that add arguments to the parser.
        run: Function from the parsed arguments to the exit status.
    """
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
