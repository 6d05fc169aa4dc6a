"""Tests whether a class, a config or a trainer uses this package.

This package replaces functions of fairseq that have defects. Most replacements have the scope
``OURS``: they change nothing for fairseq commands that do not use this package.
Classes of other packages count as this package's if they derive from its classes.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, Optional

_PACKAGE = __name__.partition(".")[0]


def is_ours(thing: Any) -> bool:
    """Return True if a class, or the class of an object, is in this package or derives from it."""
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
    """Return the name that a config has for a group such as ``task`` or ``criterion``, or None."""
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
