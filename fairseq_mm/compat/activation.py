"""Applies the repairs of fairseq, and tests whether a class, a config or a trainer needs them.

Most repairs have the scope ``OURS``: they change nothing for fairseq commands that do not use this
package. Classes of other packages count as this package's if they derive from its classes.

:mod:`.repairs` imports the modules that implement the repairs, and sets ``table``. Some of these
modules must apply all repairs. They import this module instead, which avoids a cycle of imports.
"""

import contextlib
import enum
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from fairseq_mm.compat.fairseq import check_fairseq

_PACKAGE = __name__.partition(".")[0]
# environment variable that switches every repair off, except safe loading
LEFT_OUT_BY = "FAIRSEQ_MM_NO_REPAIRS"


class Scope(enum.Enum):
    """Condition under which a repair is applied."""

    SAFE_LOADING = "on import, cannot be turned off"
    INSTALLED = "on import, where the installed version has the defect"
    OURS = "only where something of this package is used"


@dataclass(frozen=True)
class Repair:
    """One defect of fairseq or another library, and its repair.

    Attributes:
        replaces: Dotted names of attributes, or other state of the process.
        defect: Description of the failure without the repair.
        goes_when: Change of the library that would make the repair unnecessary.
        has_defect: Test whether the installed version has the defect; None if all known versions
            have it.
    """

    apply: Callable[[], None]
    replaces: tuple[str, ...]
    scope: Scope
    defect: str
    goes_when: str
    has_defect: Optional[Callable[[], bool]] = None


table: tuple[Repair, ...] = ()  # in the order in which to apply them
applied: list[Repair] = []
_are_done: set[Scope] = set()


def apply() -> None:
    """Apply the repairs that fairseq's own tasks and models need, too.

    They make loading checkpoints safe, and repair defects of the installed version. A second call
    does nothing. If fairseq cannot be imported, ImportError says what to install.
    """
    if Scope.SAFE_LOADING not in _are_done:
        # before any repair imports fairseq, for a message that says what to install
        check_fairseq()
    _apply(Scope.SAFE_LOADING)
    _apply(Scope.INSTALLED)


def activate() -> None:
    """Apply all repairs, also those for this package's own tasks and models.

    All commands, tasks, models and loading functions call this. A second call does nothing.
    """
    apply()
    _apply(Scope.OURS)


def _apply(when: Scope) -> None:
    is_wanted = when is Scope.SAFE_LOADING or os.environ.get(LEFT_OUT_BY, "") in ("", "0")
    if when in _are_done or not is_wanted:
        return
    _are_done.add(when)
    for repair in table:
        if repair.scope is when and (repair.has_defect is None or repair.has_defect()):
            repair.apply()
            applied.append(repair)


def activate_for(state: Any) -> None:
    """Apply all repairs of fairseq if a checkpoint has a model or task of this package."""
    options = [state.get("cfg"), state.get("args")] if isinstance(state, Mapping) else []
    # options of a damaged file may raise anything when they are read; fairseq refuses them later
    with contextlib.suppress(Exception):
        if any(names_ours(section) for section in options):
            activate()


def is_ours(thing: Any) -> bool:
    """Return True if a class, or an object's class, is a class of this package or a subclass."""
    cls = thing if isinstance(thing, type) else type(thing)
    return any(base.__module__.partition(".")[0] == _PACKAGE for base in cls.__mro__)


def names_ours(cfg: Any) -> bool:
    """Return True if a config, in groups (``cfg.task._name``) or flat (``cfg.task``), names a task,
    an architecture, a criterion or another registered class of this package."""
    return any(cls is not None and is_ours(cls) for cls in _named_classes(cfg))


def _named_classes(cfg: Any) -> Iterator[Optional[type]]:
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    registries = {"task": TASK_REGISTRY, "model": MODEL_REGISTRY, "arch": MODEL_REGISTRY}
    registries.update({group: registry["registry"] for group, registry in REGISTRIES.items()})
    for group, registry in registries.items():
        name = _name_in(cfg, group)
        if name is not None:
            yield registry.get(name)
            if group in ("model", "arch"):
                yield ARCH_MODEL_REGISTRY.get(name)


def _name_in(cfg: Any, group: str) -> Optional[str]:
    """Return the name in a config of the chosen ``task``, ``criterion`` or other group, or None."""
    section = cfg.get(group) if isinstance(cfg, Mapping) else getattr(cfg, group, None)
    if isinstance(section, (Mapping, Namespace)):
        return _name_in(section, "_name")
    return section if isinstance(section, str) else None


def is_user_dir() -> bool:
    """Return True if fairseq has imported a folder of ``--user-dir``."""
    utils = sys.modules.get("fairseq.utils")
    # fairseq records a folder before it imports the folder
    return bool(getattr(getattr(utils, "import_user_module", None), "memo", ()))


def is_program() -> bool:
    """Return True if this process is one of fairseq's commands, such as ``fairseq-train``.

    Return False for a program that imports fairseq and calls its functions.
    """
    # fairseq-train, or fairseq_cli/train.py
    program = os.path.abspath(sys.argv[0]).split(os.sep)[-2:]
    return any(name.startswith(("fairseq-", "fairseq_cli")) for name in program)


def uses_ours(trainer: Any) -> bool:
    """Return True if a trainer of fairseq has a task, a model or the like of this package."""
    # cached: methods that are called at every update ask for it
    attributes = vars(trainer)
    if "_uses_fairseq_mm" not in attributes:
        attributes["_uses_fairseq_mm"] = is_ours(trainer.task) or names_ours(trainer.cfg)
    return attributes["_uses_fairseq_mm"]
