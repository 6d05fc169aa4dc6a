"""Declares options of models, checks sizes, and parses lists of layers.

Lists of layers are written as ``[(512, 4)] * 4 + [(768, 4)] * 2`` or ``[True] + [False] * 5``.
fairseq evaluates such options as Python. This package parses them as literals, see
:mod:`fairseq_mm.compat.literals`.
"""

import math
from dataclasses import field
from typing import Any

from fairseq_mm.compat.literals import parse_literal
from fairseq_mm.errors import UserError

# Sizes are recognised by the ends of their names, so that a new option is checked without further
# code.
_SIZES = ("_dim", "_layers", "_heads", "_length", "_positions", "_factors", "slices")


def option(default: Any, help: str, **limits: Any) -> Any:
    """Return a dataclass field that fairseq turns into a command-line option.

    Args:
        **limits: Limits that :func:`check_sizes` checks: ``least``, ``above`` and ``multiple``
            (numbers), and ``divides`` (the name of the field that the value must divide, unless
            the value is 0).
    """
    return field(default=default, metadata={"help": help, **limits})


def check_sizes(config: type, cfg: Any) -> None:
    """Check the options of a model that are numbers.

    Sizes and counts must be 1 or more and dropout probabilities 0 or more and below 1, unless
    :func:`option` declares other limits.

    Args:
        config: Dataclass of the model; its fields are the options to check.
        cfg: Config with the values of these options; it may lack fields, as in a checkpoint that is
            older than an option, and have others.
    """
    for name, declared in config.__dataclass_fields__.items():  # type: ignore[attr-defined]
        value, limits = getattr(cfg, name, None), declared.metadata
        if type(value) not in (int, float):
            continue
        least = limits.get("least", 1 if name.endswith(_SIZES) else -math.inf)
        above, multiple = limits.get("above", -math.inf), limits.get("multiple")
        size = limits.get("divides", name)
        for is_right, expected in (
            (value >= least, f"{least} or more"),
            (value > above, f"above {above}"),
            (not name.endswith("dropout") or 0 <= value < 1, "0 or more and below 1"),
            (not multiple or value % multiple == 0, f"a multiple of {multiple}"),
            (
                size == name or not value or getattr(cfg, size) % value == 0,
                f"a divisor of {_flag(size)} ({getattr(cfg, size)})",
            ),
        ):
            if not is_right:
                raise UserError(f"{_flag(name)} must be {expected}, but is {value}.")


def check_one_dictionary(task: Any) -> None:
    """Check that source and target of a task have one dictionary, whose embeddings they share."""
    if task.source_dictionary != task.target_dictionary:
        raise UserError(
            f"source and target must have one dictionary, but have two, of "
            f"{len(task.source_dictionary)} and {len(task.target_dictionary)} words: prepare with "
            "--joined-dictionary."
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


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
