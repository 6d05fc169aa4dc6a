"""Main functions of ``scripts/*.py``."""

import argparse
import logging
import sys
from typing import Callable, Optional

from fairseq_mm.cli.main import main
from fairseq_mm.errors import EXIT_STATUS, UserError


def run_subcommand(*words: str) -> None:
    """Runs ``fairseq-mm WORDS`` with the options of the command line, and exits with its status."""
    sys.exit(main([*words, *sys.argv[1:]]))


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
