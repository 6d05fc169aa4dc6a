"""Environment variable that shows all messages of fairseq and the libraries below it."""

import os

VARIABLE = "FAIRSEQ_MM_VERBOSE"


def is_verbose() -> bool:
    """Return True if the environment variable ``FAIRSEQ_MM_VERBOSE`` is set to other than 0."""
    return os.environ.get(VARIABLE, "") not in ("", "0")
