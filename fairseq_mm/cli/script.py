"""The main function of ``scripts/*.py`` that are no subcommand."""

import argparse
import logging
import sys
from typing import Callable, Optional

from fairseq_mm.errors import EXIT_STATUS, UserError


def run_script(
    description: Optional[str],
    add_arguments: list[Callable[[argparse.ArgumentParser], None]],
    run: Callable[[argparse.Namespace], int],
) -> int:
    """
    Args:
        description: the script's docstring.
        add_arguments: add what the script needs.
        run: parsed arguments -> exit status.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for add in add_arguments:
        add(parser)
    args = parser.parse_args()
    logging.getLogger().setLevel(logging.WARNING)  # fairseq, imported by now, asked for all
    try:
        return run(args)
    except UserError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return EXIT_STATUS
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130
