"""Loads installed plugins: packages that declare an entry point ``fairseq_mm.plugins``.

A plugin registers its own models, tasks and the like when it is imported. Its ``pyproject.toml``
has::

    [project.entry-points."fairseq_mm.plugins"]
    my_captioners = "my_captioners"
"""

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fairseq_mm.errors import UserError

GROUP = "fairseq_mm.plugins"

_is_loaded = False


def load_plugins() -> None:
    """Import the installed plugins; further calls do nothing.

    A plugin that cannot be imported is named on stderr in one line, and the others are imported.
    """
    global _is_loaded
    if _is_loaded:
        return
    # before the imports: a plugin imports fairseq_mm.extension, which calls this function
    _is_loaded = True
    # sorted, because the order of installed packages differs between machines
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            with refused_names():
                _load(entry)
        except (Exception, SystemExit) as error:
            # the others, and fairseq_mm itself, must still work
            first_line = next(iter(str(error).splitlines()), "")
            print(
                f"fairseq_mm: plugin {entry.name} ({entry.value}) is not loaded: "
                f"{type(error).__name__}: {first_line}",
                file=sys.stderr,
            )


@contextlib.contextmanager
def refused_names() -> Iterator[None]:
    """Context in which registering a model or task under a used name is an error; fairseq would
    silently keep the first class. At the end, hydra converts the config classes, so that errors in
    them are reported now."""
    from fairseq import models, tasks
    from hydra.core.config_store import ConfigStore

    originals = models.register_model, tasks.register_task
    models.register_model = _refusing(models.register_model, models.MODEL_REGISTRY)
    tasks.register_task = _refusing(tasks.register_task, tasks.TASK_REGISTRY)
    try:
        yield
        # hydra converts configs that wait before it lists any: an error in a config is an error of
        # the package, and must not wait until a command reads a config
        ConfigStore.instance().list("")
    finally:
        models.register_model, tasks.register_task = originals


def _refusing(original: Any, registry: Any) -> Any:
    """Return a decorator that registers a class as ``original``, but refuses a name in use."""

    def describe(cls: Any) -> str:
        return f"{cls.__module__}.{cls.__qualname__}"

    @functools.wraps(original)
    def register(name: str, *args: Any, **options: Any) -> Any:
        def decorate(cls: Any) -> Any:
            first = registry.get(name, cls)
            # fairseq itself registers the same class twice if its module is imported twice
            if describe(first) != describe(cls):
                raise UserError(
                    f"{describe(cls)}: its name, {name!r}, is taken by {describe(first)}; register "
                    "it under another name."
                )
            return original(name, *args, **options)(cls)

        return decorate

    return register


def _load(entry: EntryPoint) -> None:
    """Import the plugin ``entry``, unless fairseq has imported its folder as ``--user-dir``."""
    from fairseq.utils import import_user_module

    # fairseq's record of the folders that it has imported; it imports a folder under its last name,
    # and a second import under another name would register every model twice
    function: Any = import_user_module
    function.memo = getattr(function, "memo", set())
    # find_spec does not import the module, which would register its models
    spec = importlib.util.find_spec(entry.module)
    folder = None  # real path of the package's folder, or of the module's file without .py
    if spec is not None and spec.origin is not None:
        path = os.path.realpath(spec.origin)
        folder = os.path.dirname(path) if spec.submodule_search_locations else path[: -len(".py")]
    if folder is not None and folder in {os.path.realpath(path) for path in function.memo}:
        return
    importlib.import_module(entry.module)
    if folder is not None:
        function.memo |= {folder, *((spec and spec.submodule_search_locations) or ())}
