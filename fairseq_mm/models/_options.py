"""Declares options of models, checks sizes, and parses lists of layers.

Lists of layers are written as ``[(512, 4)] * 4 + [(768, 4)] * 2`` or ``[True] + [False] * 5``.
fairseq evaluates such options as Python. This package parses them as literals, see
:mod:`fairseq_mm.compat.literals`.
"""

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any, Optional

from fairseq_mm.compat.literals import parse_literal
from fairseq_mm.errors import UserError

# Sizes are recognised by the ends of their names, so that a new option is checked without further
# code.
_SIZES = ("_dim", "_layers", "_heads", "_length", "_positions", "_factors", "slices")


def option(default: Any, help: str) -> Any:
    """Return a dataclass field that fairseq turns into a command-line option."""
    return field(default=default, metadata={"help": help})


def check_sizes(
    config: type,
    cfg: Any,
    *,
    may_be_zero: Collection[str] = (),
    heads: Optional[Mapping[str, str]] = None,
) -> None:
    """Check the options of a model that are sizes, counts or dropout probabilities.

    Args:
        config: Dataclass of the model; its fields are the options to check.
        cfg: Config with the values of these options; it may also have other options.
        may_be_zero: Names of sizes and counts that may be 0; all others must be 1 or more.
        heads: Dict from the name of a field with a number of heads to the name of the field with
            the size that this number must divide.
    """
    # A checkpoint that is older than an option has a config without its field.
    own = [name for name in config.__dataclass_fields__ if hasattr(cfg, name)]  # type: ignore[attr-defined]
    for name in own:
        value = getattr(cfg, name)
        if name.endswith(_SIZES):
            least = 0 if name in may_be_zero else 1
            is_wrong, expected = value < least, f"{least} or more"
        else:
            is_wrong = name.endswith("dropout") and value is not None and not 0 <= value < 1
            expected = "0 or more and below 1"
        if is_wrong:
            raise UserError(f"{_option(name)} must be {expected}, but is {value}.")
    for name, size in (heads or {}).items():
        if getattr(cfg, size) % getattr(cfg, name):
            raise UserError(
                f"{_option(name)} must divide {_option(size)} ({getattr(cfg, size)}), but is "
                f"{getattr(cfg, name)}."
            )


def check_one_dictionary(task: Any) -> None:
    """Check that source and target of a task have one dictionary, whose embeddings they share."""
    if task.source_dictionary != task.target_dictionary:
        raise UserError(
            f"source and target must have one dictionary, but have two, of "
            f"{len(task.source_dictionary)} and {len(task.target_dictionary)} words: prepare with "
            "--joined-dictionary."
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_LAYERS = "a list of (channels, width), such as '[(512, 4)] * 4 + [(768, 4)] * 2'"
_FLAGS = "True, False or a list of them, such as '[True] + [False] * 5'"


def parse_layers(text: str, option: str) -> list[tuple[int, int]]:
    """Parse the value of an option as a list of layers, pairs ``(channels, kernel width)``."""
    layers = _parse(text, option, _LAYERS)
    if not isinstance(layers, list) or not layers:
        raise _error(text, option, _LAYERS)
    for layer in layers:
        is_pair = isinstance(layer, tuple) and len(layer) == 2
        # type() and not isinstance(), because True is an int. The bound refuses sizes that would
        # exhaust the memory.
        if not is_pair or not all(type(x) is int and 0 < x < 2**20 for x in layer):
            raise _error(text, option, _LAYERS)
    return layers


def parse_flags(text: str, option: str, num_layers: int) -> list[bool]:
    """Parse the value of an option as one flag per layer.

    Args:
        text: Value of the option: True or False for all layers, or a list of flags.
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
    """Parse the value of an option as True or False."""
    flag = _parse(str(text), option, "True or False")
    if not isinstance(flag, bool):
        raise _error(text, option, "True or False")
    return flag


def _error(text: str, option: str, expected: str) -> UserError:
    shown = repr(text) if len(str(text)) <= 100 else f"{str(text)[:100]!r}..."
    return UserError(f"{option} must be {expected}, but is {shown} instead.")


def _parse(text: str, option: str, expected: str) -> Any:
    try:
        # fairseq evaluates these options as Python, so a checkpoint could run any code.
        return parse_literal(text)
    except ValueError:
        raise _error(text, option, expected) from None
