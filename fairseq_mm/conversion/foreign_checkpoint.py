"""Checkpoint files of other programs -> their content, with nothing run that they name.

A pickle can call anything. These files are read by an unpickler that finds tensors, containers
and options; what fairseq and numpy keep beside them (meters, their numbers) becomes an object
without content, and everything else is refused. So checkpoints of every age of fairseq can be
read, whichever of its classes they name, and with every PyTorch.
"""

import argparse
import collections
import inspect
import os
import pickle
import re
import types
from typing import Any

import omegaconf
import torch
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import (
    AnyNode,
    BooleanNode,
    EnumNode,
    FloatNode,
    IntegerNode,
    StringNode,
)

from fairseq_mm.compat.evaluated_options import check_options
from fairseq_mm.errors import UserError

_STORAGE = re.compile(r"[A-Za-z0-9]+Storage")
_REBUILDING = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter")
_FOUND: dict[tuple[str, str], Any] = {
    ("argparse", "Namespace"): argparse.Namespace,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
    ("builtins", "dict"): dict,
    ("builtins", "list"): list,
    ("builtins", "int"): int,
    ("typing", "Any"): Any,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    ("torch.nn.parameter", "Parameter"): torch.nn.Parameter,
    **{("torch._utils", name): getattr(torch._utils, name) for name in _REBUILDING},
    **{
        (found.__module__, found.__name__): found
        for found in (
            *(omegaconf.DictConfig, omegaconf.ListConfig, ContainerMetadata, Metadata),
            *(AnyNode, BooleanNode, EnumNode, FloatNode, IntegerNode, StringNode),
        )
    },
}
_WITHOUT_CONTENT = re.compile(r"(fairseq|numpy|_codecs)(\.|$)")


class Emptied(dict):
    """Stands for an object that is not needed; takes whatever a pickle gives it."""

    def __init__(self, *unused: Any, **also_unused: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass

    def append(self, item: Any) -> None:
        pass

    def extend(self, items: Any) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _FOUND:
            return _FOUND[module, name]
        if module in ("torch", "torch.storage") and _STORAGE.fullmatch(name):
            return super().find_class(module, name)
        if _WITHOUT_CONTENT.match(module):
            return Emptied
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def checkpoint_path(checkpoint: str) -> str:
    """The file itself, or of a folder its ``model.pt``."""
    return os.path.join(checkpoint, "model.pt") if os.path.isdir(checkpoint) else checkpoint


def read_foreign_checkpoint(path: str) -> dict[str, Any]:
    """
    Args:
        path: file written by ``torch.save``, of a dictionary.

    Returns:
        its content, on the CPU.

    Raises:
        UserError: if it is no such file, asks for more than tensors, containers and options, or
            an option that fairseq evaluates is no literal.
    """
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such checkpoint.")
    module: Any = types.ModuleType("restricted")
    module.Unpickler = _Unpickler
    module.load = lambda file, **options: _Unpickler(file, **options).load()
    options = {}
    if "weights_only" in inspect.signature(torch.load).parameters:
        options["weights_only"] = False  # ours is as strict, and knows old checkpoints
    try:
        state = torch.load(path, map_location="cpu", pickle_module=module, **options)
    except Exception as error:  # torch raises nearly anything on other files
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0][:200] if lines else ''}"
        raise UserError(
            f"{path}: is no checkpoint that can be read safely (tensors, containers and options, "
            f"nothing that runs): {reason}."
        ) from None
    if not isinstance(state, dict):
        raise UserError(f"{path}: must hold a dictionary, but holds a {type(state).__name__}.")
    check_options(state, path)
    return state
