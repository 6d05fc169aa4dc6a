"""Options of models: their declarations, and their sizes, checked before anything is built."""

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any, Optional

from fairseq_mm.errors import UserError

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
    """
    Args:
        config: the model's dataclass, whose fields are checked.
        cfg: their values; it may hold other models' as well.
        may_be_zero: sizes that 0 leaves to the model.
        heads: number of heads -> the size that they divide.

    Raises:
        UserError: naming the option, if a size, a number or a dropout is out of its range.
    """
    own = [name for name in config.__dataclass_fields__ if hasattr(cfg, name)]  # type: ignore[attr-defined]
    for name in own:
        value = getattr(cfg, name)
        if name.endswith(_SIZES):
            least = 0 if name in may_be_zero else 1
            if value < least:
                raise UserError(f"{_option(name)} must be {least} or more, but is {value}.")
        elif name.endswith("dropout") and value is not None and not 0 <= value < 1:
            raise UserError(f"{_option(name)} must be 0 or more and below 1, but is {value}.")
    for name, size in (heads or {}).items():
        if getattr(cfg, size) % getattr(cfg, name):
            raise UserError(
                f"{_option(name)} must divide {_option(size)} ({getattr(cfg, size)}), but is "
                f"{getattr(cfg, name)}."
            )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
