"""Defers imports of slow modules that fairseq and torchvision import but rarely use.

fairseq imports scikit-learn and SciPy's statistics for two functions of a criterion, TensorBoard
for the log of a training, and sacreBLEU with tabulate for tables of scores. torchvision imports
PyTorch's compiler for one function of ``roi_align``. These imports take a third of the starting
time of ``fairseq-mm caption``. The context :func:`deferred` replaces the modules by
placeholders, whose functions import the real module when they are called.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

# modules that are deferred while fairseq, or torchvision, is imported
OF_FAIRSEQ = (
    *("sklearn", "sklearn.metrics", "scipy.stats"),
    *("torch.utils.tensorboard", "tensorboardX", "tabulate"),
)
OF_TORCHVISION = ("torch._dynamo", "torch._dynamo.utils")

# only fairseq-mm switches it on: a library must not change the imports of its program
is_enabled = False


def defer_configs(config_store: Any) -> None:
    """Make hydra's class ``ConfigStore`` add configs only when one of its configs is read."""
    store = config_store.store
    waiting: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    is_storing = False

    def read(self: Any) -> Any:
        nonlocal is_storing
        # hydra's `store` reads the attribute, too
        if not is_storing:
            is_storing = True
            try:
                while waiting:
                    args, kwargs = waiting.pop(0)
                    store(self, *args, **kwargs)
            finally:
                # after an error, the next reading goes on with the other configs
                is_storing = False
        return self.__dict__["repo"]

    def write(self: Any, value: Any) -> None:
        self.__dict__["repo"] = value

    config_store.store = lambda self, *args, **kwargs: waiting.append((args, kwargs))
    # every method of the class that looks for a config reads this attribute
    config_store.repo = property(read, write)


class _Deferred:
    """Stand-in for a function; a call imports the function's module and calls the function."""

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
    """Stand-in for a module; each of its attributes is a :class:`_Deferred` function."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Deferred(self.__name__, name)


@contextlib.contextmanager
def deferred(names: tuple[str, ...]) -> Iterator[None]:
    """Put placeholders for modules into ``sys.modules`` inside the context, unless one is loaded; a
    package must come before its submodules."""
    placed = {}
    if is_enabled and not any(name in sys.modules for name in names):
        placed = {name: _Placeholder(name) for name in names}
    sys.modules.update(placed)
    try:
        yield
    finally:
        for name, placeholder in placed.items():
            if sys.modules.get(name) is placeholder:
                del sys.modules[name]
