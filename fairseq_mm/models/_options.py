"""Parses lists of layers, and checks dictionaries.

Lists of layers are written as ``[(512, 4)] * 4 + [(768, 4)] * 2`` or ``[True] + [False] * 5``.
fairseq evaluates such options as Python. This package parses them as literals, see
:mod:`fairseq_mm.compat.literals`.
"""

from typing import Any

from fairseq_mm.compat.literals import parse_literal
from fairseq_mm.errors import UserError


def check_one_dictionary(task: Any) -> None:
    """Check that source and target of a task have one dictionary, whose embeddings they share."""
    if task.source_dictionary != task.target_dictionary:
        raise UserError(
            f"source and target must have one dictionary, but have two, of "
            f"{len(task.source_dictionary)} and {len(task.target_dictionary)} words: prepare with "
            "--joined-dictionary."
        )


_LAYERS = "a list of (channels, width), such as '[(512, 4)] * 4 + [(768, 4)] * 2'"
_FLAGS = "True, False or a list of them, such as '[True] + [False] * 5'"


def parse_layers(text: str, option: str) -> list[tuple[int, int]]:
    """Parse the value of an option as a list of layers, pairs ``(channels, kernel width)``."""
    layers = _parse(text, option, _LAYERS)
    # type() and not isinstance(), because True is an int. The bound refuses sizes that would
    # exhaust the memory.
    if (
        not isinstance(layers, list)
        or not layers
        or not all(
            isinstance(layer, tuple)
            and len(layer) == 2
            and all(type(x) is int and 0 < x < 2**20 for x in layer)
            for layer in layers
        )
    ):
        raise _error(text, option, _LAYERS)
    return layers


def parse_flags(text: str, option: str, num_layers: int) -> list[bool]:
    """Parse True, False or a list of flags, the value of an option, as one flag per layer."""
    flags = _parse(str(text), option, _FLAGS)
    if isinstance(flags, bool):
        return [flags] * num_layers
    if not isinstance(flags, list) or not all(isinstance(flag, bool) for flag in flags):
        raise _error(text, option, _FLAGS)
    if len(flags) != num_layers:
        raise _error(text, option, f"a list of one entry for each of the {num_layers} layers")
    return flags


def parse_flag(text: str, option: str) -> bool:
    flag = _parse(str(text), option, "True or False")
    if not isinstance(flag, bool):
        raise _error(text, option, "True or False")
    return flag


def _parse(text: str, option: str, expected: str) -> Any:
    try:
        return parse_literal(text)
    except ValueError:
        raise _error(text, option, expected) from None


def _error(text: str, option: str, expected: str) -> UserError:
    return UserError(f"{option} must be {expected}, but is {str(text)[:100]!r} instead.")
