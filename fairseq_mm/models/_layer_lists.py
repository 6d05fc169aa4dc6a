"""Layer lists of the command line: ``[(512, 4)] * 4 + [(768, 4)] * 2``, ``[True] + [False] * 5``.

fairseq evaluates such options as Python. Here they are parsed as literals, see
:mod:`fairseq_mm.compat.literals`.
"""

from typing import Any

from fairseq_mm.compat.literals import parse_literal
from fairseq_mm.errors import UserError

_LAYERS = "a list of (channels, width), such as '[(512, 4)] * 4 + [(768, 4)] * 2'"
_FLAGS = "True, False or a list of them, such as '[True] + [False] * 5'"


def parse_layers(text: str, option: str) -> list[tuple[int, int]]:
    """
    Args:
        text: a list of ``(channels, width)``.
        option: its flag, for the message.

    Raises:
        UserError: if it is no such list, or names no layer.
    """
    layers = _parse(text, option, _LAYERS)
    if not isinstance(layers, list) or not layers:
        raise _error(text, option, _LAYERS)
    for layer in layers:
        is_pair = isinstance(layer, tuple) and len(layer) == 2
        if not is_pair or not all(type(x) is int and 0 < x < 2**20 for x in layer):
            raise _error(text, option, _LAYERS)
    return layers


def parse_flags(text: str, option: str, num_layers: int) -> list[bool]:
    """
    Args:
        text: True or False for all layers, or a list of one for each.
        option: its flag, for the message.
        num_layers: that there must be.

    Raises:
        UserError: if it is neither, or the list has another length.
    """
    flags = _parse(str(text), option, _FLAGS)
    if isinstance(flags, bool):
        return [flags] * num_layers
    if not isinstance(flags, list) or not all(isinstance(flag, bool) for flag in flags):
        raise _error(text, option, _FLAGS)
    if len(flags) != num_layers:
        raise UserError(
            f"{option} must have one entry for each of the {num_layers} layers, but {text!r} has "
            f"{len(flags)}."
        )
    return flags


def parse_flag(text: str, option: str) -> bool:
    """
    Raises:
        UserError: if ``text`` is neither True nor False.
    """
    flag = _parse(str(text), option, "True or False")
    if not isinstance(flag, bool):
        raise _error(text, option, "True or False")
    return flag


def _error(text: str, option: str, expected: str) -> UserError:
    shown = repr(text) if len(str(text)) <= 100 else f"{str(text)[:100]!r}..."
    return UserError(f"{option} must be {expected}, but is {shown} instead.")


def _parse(text: str, option: str, expected: str) -> Any:
    try:
        return parse_literal(text, computes=False)
    except ValueError:
        raise _error(text, option, expected) from None
