"""Applies the repairs of fairseq, and remembers which repairs this process has applied.

:mod:`.repairs` imports the modules that implement the repairs, and sets ``table``. Some of these
modules must apply all repairs. They import this module instead, which avoids a cycle of imports.
"""

import enum
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

from fairseq_mm.compat.fairseq import check_fairseq

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
        has_defect: Test whether the installed version has the defect; None if all known ones do.
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
    """Apply the repairs that are needed even for fairseq's own tasks and models.

    These are the safe loading of checkpoints, and repairs of defects of the installed version. A
    second call does nothing. ImportError says what to install if fairseq cannot be imported.
    """
    # before any repair imports fairseq, for a message that says what to install
    check_fairseq()
    _apply(Scope.SAFE_LOADING)
    _apply(Scope.INSTALLED)


def activate() -> None:
    """Apply all repairs, also those for this package's own tasks and models.

    The package's commands, tasks, models and loading functions call it. A second call does nothing.
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
