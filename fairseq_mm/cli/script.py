"""Main functions of the programs in ``scripts/`` and ``examples/``."""

import argparse
import logging
import sys
from typing import Callable, Optional

from fairseq_mm.cli.main import DISK_ERRORS, Parser
from fairseq_mm.errors import EXIT_STATUS, UserError


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
        return run(args)
    except UserError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return EXIT_STATUS
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130  # as a shell reports SIGINT
    except OSError as error:
        if error.filename is None and error.errno not in DISK_ERRORS:
            raise
        where = error.filename or "the output"
        print(f"{parser.prog}: {where}: {error.strerror}.", file=sys.stderr)
        return EXIT_STATUS
