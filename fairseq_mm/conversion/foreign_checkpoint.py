"""Reads checkpoints and pickles of other programs without running code from them."""

import argparse
import pickle
from argparse import Namespace
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fairseq_mm.compat.loading import (
    Dtype,
    is_model_folder,
    load_model_folder,
    load_torch_file,
    new_scalar,
)
from fairseq_mm.errors import UserError, file_errors


def checkpoint_config(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a checkpoint as nested dicts; empty if fairseq before 0.10 wrote it."""
    cfg = state.get("cfg")
    if isinstance(cfg, DictConfig):
        cfg = OmegaConf.to_container(cfg)
    return cfg if isinstance(cfg, dict) else {}


def checkpoint_options(state: Mapping[str, Any], path: str) -> tuple[str, dict[str, Any]]:
    """Return the ``--arch`` of a checkpoint, and the model's options that are not None."""
    options: dict[str, Any] = {}
    for part in (checkpoint_config(state).get("model"), state.get("args")):
        # models without a dataclass have a Namespace in cfg, too
        values = vars(part) if isinstance(part, Namespace) else part
        if isinstance(values, dict):
            # an option that is None would hide the default of the architecture
            options.update({name: x for name, x in values.items() if x is not None})
    if not isinstance(state.get("model"), dict) or not options:
        raise UserError(f"{path}: is no checkpoint of fairseq: it has no model, or no options.")
    return str(options.get("_name") or options.get("arch")), options


def read_foreign_checkpoint(path: str) -> dict[str, Any]:
    """Read a dictionary that ``torch.save`` has written, with its tensors on the CPU.

    ``path`` may be the ``model.safetensors`` of a model folder.
    """
    with file_errors(path):
        if is_model_folder(path):
            return load_model_folder(path)
        state = load_torch_file(path)
        if not isinstance(state, dict):
            raise TypeError(f"it holds a {type(state).__name__} instead of a dictionary")
        return state


_CONTAINERS = (dict, list, tuple, set, frozenset, bool, int, float, str, bytes)
# Python 2 writes objects of classes by the first two, and names the module __builtin__
_VALUES: Mapping[tuple[str, str], Any] = {
    ("copy_reg", "_reconstructor"): lambda kind, base, state: kind(),
    # Python 3 writes bytes so in protocol 2
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),
    ("__builtin__", "object"): object,
    ("__builtin__", "long"): int,
    ("__builtin__", "unicode"): str,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): defaultdict,
    ("numpy", "dtype"): Dtype,
    **{(f"numpy.{core}.multiarray", "scalar"): new_scalar for core in ("core", "_core")},
    **{(m, kind.__name__): kind for kind in _CONTAINERS for m in ("builtins", "__builtin__")},
}


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler of containers, numbers and options; objects of ``stand_ins`` become options."""

    def __init__(self, file: Any, stand_ins: Collection[tuple[str, str]]) -> None:
        # Latin-1 has a letter for each byte, so that byte strings of Python 2 survive
        super().__init__(file, encoding="latin1", fix_imports=False)
        # a new class, because a pickle could set attributes of the class itself
        options = type("Namespace", (argparse.Namespace,), {})
        names = [("argparse", "Namespace"), *stand_ins]
        self._table = {**_VALUES, **dict.fromkeys(names, options)}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._table:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return self._table[module, name]


def read_plain_pickle(path: str, *, stand_ins: Collection[tuple[str, str]] = ()) -> Any:
    """Read a pickle of containers, numbers and options without running code. Objects of the classes
    ``stand_ins`` (module, name) become a Namespace; byte strings of Python 2 are decoded as
    Latin-1, see :func:`repaired_text`."""
    with file_errors(path, "is no pickle that can be read safely"), open(path, "rb") as file:
        return _PlainUnpickler(file, stand_ins).load()


def repaired_text(text: str) -> str:
    """Repair UTF-8 that was decoded as Latin-1, as in a pickle of Python 2."""
    try:
        return text.encode("latin1").decode("utf-8")
    except UnicodeError:  # it was text already
        return text
