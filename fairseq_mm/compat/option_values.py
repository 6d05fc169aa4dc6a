"""Checks that a checkpoint's options are plain values that refer to nothing outside of the file."""

import os
import re
import stat
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import numpy as np

from fairseq_mm.errors import UserError

_MOST_VALUES = 100_000  # fairseq's configuration has some thousands
_REFERENCE = re.compile(r"\$\{[A-Za-z0-9_.]+\}")
_DEEPEST = 100
# options that may name input files; --log-file and --tensorboard-logdir name outputs
_READING = re.compile(
    r"cfg\.(model|task|criterion|bpe|tokenizer|scoring)\b|args\.(?!log_file|tensorboard_logdir)"
)


def check_values(options: Any, root: str, source: str) -> None:
    """Check the values of a checkpoint's options.

    Args:
        options: ``cfg`` or ``args`` of the checkpoint.
        root: ``"cfg"`` or ``"args"``.
        source: Path of the checkpoint, for messages.

    Raises:
        UserError: if the options contain themselves, too many values, bytes or an array, or a
            string that refers to several values or to values outside of the checkpoint
            (``${oc.env:HOME}``).
    """
    import torch

    _check_number(options, root, source)
    for path, _, value in values_of(options, root):
        if isinstance(value, (bytes, bytearray, np.ndarray, torch.Tensor)):
            raise UserError(
                f"{source}: {path} must be a plain value, but is a {type(value).__name__}."
            )
        if isinstance(value, str) and "${" in _REFERENCE.sub("", value, count=1):
            raise UserError(
                f"{source}: {path} must be a plain value, but is {shortened(value)} instead, "
                "which reads something outside of the checkpoint, or several values."
            )
        if isinstance(value, str) and _READING.match(path) and _is_endless(value):
            raise UserError(
                f"{source}: {path} must name a file, but {shortened(value)} is a device or a pipe."
            )


def _is_endless(path: str) -> bool:
    """Return whether reading a path could wait or go on for ever."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def values_of(options: Any, root: str) -> Iterator[tuple[str, str, Any]]:
    """Yield all values that are no containers, each with its path and the name of its option.

    Nodes of omegaconf are read as they are stored, so that nothing is resolved. Each container is
    read once per option.
    """
    todo: list[tuple[str, str, Any]] = [(root, "", options)]
    seen = set()
    while todo:
        path, name, value = todo.pop()
        if not _holds(value):
            yield path, name, value
        elif (id(value), name) not in seen:
            seen.add((id(value), name))
            todo += reversed(list(_items(path, name, value)))


def _check_number(options: Any, root: str, source: str) -> None:
    """Check the number of values, where a container counts as often as it occurs.

    omegaconf builds a container as often as it occurs: 40 levels of containers that each contain
    the next one twice would never end.
    """
    # number of values in a container; None while its content is being counted
    numbers: dict[int, Optional[int]] = {}
    todo = [options] if _holds(options) else []
    depth = 0
    while todo:
        value = todo[-1]
        items = [item for _, _, item in _items("", "", value)]
        if id(value) not in numbers:
            numbers[id(value)] = None
            depth += 1
            if depth > _DEEPEST:
                raise UserError(f"{source}: {root} is nested more than {_DEEPEST} deep.")
            if any(id(item) in numbers and numbers[id(item)] is None for item in items):
                raise UserError(f"{source}: {root} must be a tree of options, but holds itself.")
            todo += [item for item in items if _holds(item)]
            continue
        todo.pop()
        if numbers[id(value)] is None:
            depth -= 1
            number = 1 + sum(numbers.get(id(item)) or 1 for item in items)
            if number > _MOST_VALUES:
                raise UserError(
                    f"{source}: {root} must have {_MOST_VALUES:,} values at most, but has more."
                )
            numbers[id(value)] = number


def _holds(value: Any) -> bool:
    from omegaconf import Node

    return isinstance(value, (list, tuple, set, frozenset, Mapping, Namespace, Node))


def _items(path: str, name: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    from omegaconf import Node

    if isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"{path}[{i}]", name, item) for i, item in enumerate(value))
    elif isinstance(value, Mapping) and not isinstance(value, Node):
        yield from ((f"{path}.{key}", str(key), item) for key, item in value.items())
    # reading an attribute finds attributes before items of the same name, also in mappings
    if isinstance(value, (Node, Namespace, Mapping)):
        for key, item in getattr(value, "__dict__", {}).items():
            if key in ("_content", "_val") and isinstance(value, Node):
                yield path, name, item
            elif key != "_parent":
                yield f"{path}.{key}", str(key), item


def shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
