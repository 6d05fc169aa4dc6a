"""Deferred imports of slow modules that fairseq and torchvision import but rarely use.

fairseq imports scikit-learn and SciPy's statistics for two functions of a criterion, and
torchvision imports PyTorch's compiler for one function of ``roi_align``. This is a third of the
time in which ``fairseq-mm caption`` starts. Inside :func:`deferred` these modules are placeholders,
whose functions import the real module when they are called.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

# modules that are deferred while fairseq, or torchvision, is imported
OF_FAIRSEQ = ("sklearn", "sklearn.metrics", "scipy.stats")
OF_TORCHVISION = ("torch._dynamo", "torch._dynamo.utils")

# only fairseq-mm switches it on: a library must not change the imports of its program
_enabled = False


def enable() -> None:
    """Switch :func:`deferred` on for this process."""
    global _enabled
    _enabled = True


class _Deferred:
    """Function of a module that is imported when the function is called."""

    def __init__(self, module: str, name: str) -> None:
        self._place = (module, name)

    def __getattr__(self, name: str) -> "_Deferred":
        # copy, pickle and inspect look for such methods, and would find a function for each
        if name.startswith("__"):
            raise AttributeError(name)
        module, path = self._place
        return _Deferred(module, f"{path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, path = self._place
        function: Any = importlib.import_module(module)
        for name in path.split("."):
            function = getattr(function, name)
        return function(*args, **kwargs)


class _Placeholder(ModuleType):
    """Placeholder of a module whose functions are imported, but not called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Deferred(self.__name__, name)


@contextlib.contextmanager
def deferred(names: tuple[str, ...]) -> Iterator[None]:
    """Defer the import of modules inside the context; modules that are loaded already stay.

    Args:
        names: Names of the modules, a package before its modules.
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
