"""When repairs of fairseq are applied, and which of them this process has applied.

The table (:mod:`.repairs`) imports every module that has a repair, and hands itself over here.
Modules with repairs that must see to it that all are applied import only this module, so that no
two modules import each other.
"""

import enum
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

# environment variable that switches every repair off, except safe loading
LEFT_OUT_BY = "FAIRSEQ_MM_NO_REPAIRS"


class Scope(enum.Enum):
    """When a repair is applied."""

    SAFE_LOADING = "on import, cannot be turned off"
    INSTALLED = "on import, where the installed version has the defect"
    OURS = "only where something of this package is used"


@dataclass(frozen=True)
class Repair:
    """One defect of the host and its repair.

    Attributes:
        apply: Function that replaces what ``replaces`` names.
        replaces: Dotted names of attributes, or of other state of the process.
        scope: When it is applied.
        defect: Failure of the host without the repair.
        goes_when: Change of the host that makes the repair unnecessary.
        has_defect: Probe of the installed versions; None if all known versions have the defect.
    """

    apply: Callable[[], None]
    replaces: tuple[str, ...]
    scope: Scope
    defect: str
    goes_when: str
    has_defect: Optional[Callable[[], bool]] = None


_table: tuple[Repair, ...] = ()
_check_host: Optional[Callable[[], None]] = None
_applied: list[Repair] = []
_are_done: set[Scope] = set()


def use_table(repairs: tuple[Repair, ...], *, check_host: Callable[[], None]) -> None:
    """Set the repairs that :func:`apply` and :func:`activate` apply, in their order.

    Args:
        repairs: All repairs.
        check_host: Function that raises ImportError if fairseq cannot be imported.
    """
    global _table, _check_host
    _table, _check_host = repairs, check_host


def apply() -> None:
    """Apply safe loading and the repairs for the installed versions; a second call does nothing.

    Raises:
        ImportError: naming the remedy, if fairseq is missing or does not import.
    """
    # before any repair imports fairseq, for a message that says what to install
    assert _check_host is not None  # the package fairseq_mm.compat imports the table
    _check_host()
    _apply(Scope.SAFE_LOADING)
    if are_wanted():
        _apply(Scope.INSTALLED)


def activate() -> None:
    """Apply the repairs for this package's own tasks and models; a second call does nothing.

    All parts of the package call it when they are used: commands, tasks, models, and loading.
    """
    if are_active():
        return
    apply()
    if are_wanted():
        _apply(Scope.OURS)


def are_active() -> bool:
    """Return whether :func:`activate` has been called in this process."""
    return Scope.OURS in _are_done


def are_wanted() -> bool:
    """Return whether repairs other than safe loading are to be applied."""
    return os.environ.get(LEFT_OUT_BY, "") in ("", "0")


def list_applied() -> list[Repair]:
    """Return the repairs that this process has applied so far."""
    return list(_applied)


def _apply(when: Scope) -> None:
    if when in _are_done:
        return
    _are_done.add(when)
    for repair in _table:
        if repair.scope is when and (repair.has_defect is None or repair.has_defect()):
            repair.apply()
            _applied.append(repair)
