"""Reads the environment variable that shows all messages of fairseq and the libraries below it.

This is not a module of ``compat`` because ``compat`` takes a tenth of a second to import, which
``fairseq-mm`` does not need in order to print a help text or to complete a command.
"""

import os


def is_verbose() -> bool:
    """Return True if the environment variable ``FAIRSEQ_MM_VERBOSE`` is set to other than 0."""
    return os.environ.get("FAIRSEQ_MM_VERBOSE", "") not in ("", "0")
