"""Imports of other packages that a command line of ours does without.

fairseq imports scikit-learn and SciPy's statistics for two functions of a criterion, torchvision
imports PyTorch's compiler for one function of ``roi_align``: a third of the time in which
``fairseq-mm caption`` starts. Inside :func:`deferred` they get placeholders, whose functions import
the real module when they are called. Programs that import this package as a library are left as
they are: only ``fairseq-mm`` calls :func:`enable`. Goes when fairseq and torchvision import them
where they are used.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

# package -> modules from which names are imported while it is imported
OF_FAIRSEQ = ("sklearn", "sklearn.metrics", "scipy.stats")
OF_TORCHVISION = ("torch._dynamo", "torch._dynamo.utils")

_enabled = False


def enable() -> None:
    """Lets :func:`deferred` do what it says; without, it does nothing."""
    global _enabled
    _enabled = True


class _Deferred:
    """A name of a module that is imported when the name is called.

    Args:
        module: the module.
        name: in it, with dots between attributes.
    """

    def __init__(self, module: str, name: str) -> None:
        self._place = (module, name)

    def __getattr__(self, name: str) -> "_Deferred":
        if name.startswith("__"):
            raise AttributeError(name)
        module, path = self._place
        return _Deferred(module, f"{path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, path = self._place
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
        return found(*args, **kwargs)


class _Placeholder(ModuleType):
    """Stands for a module whose functions are imported, but not called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Deferred(self.__name__, name)


@contextlib.contextmanager
def deferred(names: tuple[str, ...]) -> Iterator[None]:
    """Defers the import of modules by what is imported inside; those that are imported already are
    left as they are.

    Args:
        names: modules, a package before what it holds.
    """
    placed = {}
    if _enabled and not any(name in sys.modules for name in names):
        placed = {name: _Placeholder(name) for name in names}
    sys.modules.update(placed)
    try:
        yield
    finally:
        for name, placeholder in placed.items():
            if sys.modules.get(name) is placeholder:
                del sys.modules[name]
