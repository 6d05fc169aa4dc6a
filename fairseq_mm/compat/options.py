"""Declares options of models, criterions and optimizers with their limits, and checks them."""

import functools
import math
from dataclasses import field
from typing import Any

from fairseq_mm.compat.activation import activate, is_ours
from fairseq_mm.errors import UserError

# Sizes are recognised by the ends of their names, so that a new option is checked without further
# code.
_SIZES = ("_dim", "_layers", "_heads", "_length", "_positions", "_factors", "slices")


def option(default: Any, help: str, **limits: Any) -> Any:
    """Return a dataclass field that fairseq turns into a command-line option.

    Args:
        **limits: Limits that :func:`check_sizes` checks: the numbers ``least``, ``above``,
            ``below`` and ``multiple``; ``divides``, the name of the field that the value must
            divide, unless the value is 0; and ``needs``, another field (``name``), or its value
            (``name=value``), that must be given with a value other than the default.
    """
    return field(default=default, metadata={"help": help, **limits})


def check_sizes(config: Any, cfg: Any) -> None:
    """Check the options of a model, a task, a criterion or an optimizer.

    Sizes and counts must be 1 or more and dropout probabilities 0 or more and below 1, unless
    :func:`option` declares other limits.

    Args:
        config: Dataclass of the model; its fields are the options to check.
        cfg: Config with the values of these options; it may lack fields, as in a checkpoint that is
            older than an option, and have others.
    """
    for name, declared in config.__dataclass_fields__.items():
        # values of other groups of options, which a checkpoint's config may lack
        if str(declared.default).startswith("${") and not declared.metadata:
            continue
        value, limits = getattr(cfg, name, declared.default), declared.metadata
        needed, _, expected = limits.get("needs", "").partition("=")
        if needed and str(value) != str(declared.default):
            given = getattr(cfg, needed, None)
            if not given or (expected and str(given) != expected):
                raise UserError(f"{_flag(name)} needs {_flag(needed)} {expected}".rstrip() + ".")
        if type(value) not in (int, float):
            continue
        least = 0 if name.endswith("dropout") else 1 if name.endswith(_SIZES) else -math.inf
        least, above = limits.get("least", least), limits.get("above", -math.inf)
        below = limits.get("below", 1 if name.endswith("dropout") else math.inf)
        multiple, size = limits.get("multiple", 1), limits.get("divides", name)
        for is_wrong, expected in (
            (value < least, f"{least} or more"),
            ("above" in limits and not value > above, f"above {above}"),
            (value >= below, f"below {below}"),
            (multiple > 1 and value % multiple, f"a multiple of {multiple}"),
            (
                size != name and value and getattr(cfg, size) % value,
                f"a divisor of {_flag(size)} ({getattr(cfg, size)})",
            ),
        ):
            if is_wrong:
                raise UserError(f"{_flag(name)} must be {expected}, but is {value}.")


def check_when_built(model: Any, config: type) -> None:
    """Let ``model.build_model`` first patch fairseq and check the options of ``config``."""
    from fairseq.tasks import TASK_REGISTRY

    # Importing the package must not change fairseq for models of other packages, so the repairs
    # are applied when a model of this package is built.
    build = model.build_model.__func__

    @functools.wraps(build)
    def build_model(cls: Any, cfg: Any, task: Any) -> Any:
        activate()
        check_sizes(config, cfg)
        try:
            return build(cls, cfg, task)
        except AttributeError as error:
            if error.obj is not task:
                raise
            tasks = TASK_REGISTRY.items()
            names = [name for name, x in tasks if is_ours(x) and hasattr(x, str(error.name))]
            raise UserError(
                f"--arch {getattr(cfg, '_name', cls.__name__)} does not fit the task "
                f"{type(task).__name__}: give --task {' or '.join(names)}."
            ) from error

    model.build_model = classmethod(build_model)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
