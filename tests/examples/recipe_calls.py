"""Parsing of the commands that recipes call."""

from argparse import Namespace
from collections.abc import Sequence

from fairseq import options


def parse_training(call: Sequence[str]) -> Namespace:
    """Parse a call of fairseq-train as the command does."""
    assert call[0] == "fairseq-train"
    return options.parse_args_and_arch(options.get_training_parser(), call[1:])
