"""Pickles of plain content (containers, numbers, arrays, options), with nothing run that they name.

A pickle can call anything. The unpickler here finds what such content is made of, written by
Python 2 or 3 and by any numpy, and refuses everything else.
"""

import argparse
import collections
import copyreg
import os
import pickle
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from fairseq_mm.errors import UserError

# how numpy itself rebuilds arrays and numbers; the module is another in its second version
_ARRAY = {
    "_reconstruct": np.zeros(1).__reduce__()[0],
    "scalar": np.float64(0.0).__reduce__()[0],
}
_FOUND: dict[tuple[str, str], Any] = {
    ("argparse", "Namespace"): argparse.Namespace,
    ("collections", "OrderedDict"): collections.OrderedDict,
    # what Python 2 writes for an object of a class
    ("copyreg", "_reconstructor"): vars(copyreg)["_reconstructor"],
    ("builtins", "object"): object,
    # numpy's bytes under Python 3
    ("_codecs", "encode"): str.encode,
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
    **{
        (f"numpy.{core}.multiarray", name): rebuild
        for core in ("core", "_core")
        for name, rebuild in _ARRAY.items()
    },
    **{
        ("builtins", kind.__name__): kind
        for kind in (
            *(dict, list, tuple, set, frozenset),
            *(bool, int, float, complex, str, bytes, bytearray),
        )
    },
}
# what modules were called in Python 2
_RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, stand_ins: Mapping[tuple[str, str], Any]) -> None:
        # byte strings of Python 2, which are text, and numpy's arrays in them
        super().__init__(file, encoding="latin1")
        self._found = {**_FOUND, **stand_ins}

    def find_class(self, module: str, name: str) -> Any:
        module = _RENAMED.get(module, module)
        if (module, name) in self._found:
            return self._found[module, name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_plain_pickle(
    path: str, *, stand_ins: Optional[Mapping[tuple[str, str], Any]] = None
) -> Any:
    """
    Args:
        path: a pickle.
        stand_ins: (module, name) of a class -> what an object of it becomes.

    Returns:
        its content. Byte strings of Python 2 are text, see :func:`repaired_text`.

    Raises:
        UserError: if the file is missing or damaged, or asks for anything but plain content.
    """
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file.")
    try:
        with open(path, "rb") as file:
            return _Unpickler(file, stand_ins or {}).load()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except Exception as error:  # pickle raises nearly anything on other files
        raise UserError(
            f"{path}: is no pickle that can be read safely (containers, numbers and options, "
            f"nothing that runs): {type(error).__name__}: {str(error)[:200]}."
        ) from None


def repaired_text(text: str) -> str:
    """A byte string of Python 2, which was read as Latin-1, as the UTF-8 that it is."""
    try:
        return text.encode("latin1").decode("utf-8")
    except UnicodeError:
        return text
