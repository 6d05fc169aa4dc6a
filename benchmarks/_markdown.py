"""Tables in Markdown that are printed as they are made."""

from collections.abc import Sequence
from typing import Any


def print_row(cells: Sequence[Any]) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
