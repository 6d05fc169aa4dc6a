"""Reading checkpoints with nothing run that they name."""

import argparse
import collections
import inspect
import pickle
import re
import types
import typing
from typing import Any


def load_weights(path: str) -> Any:
    """``torch.load`` with weights only: whatever else the file asks for is refused.

    PyTorch before 1.13 has no ``weights_only``; there this is done by an unpickler that finds
    tensors' classes alone. Goes with PyTorch 1.12.

    Args:
        path: file of tensors, and of containers of them.

    Returns:
        the file's content, on the CPU.

    Raises:
        pickle.UnpicklingError: if the file needs any other class or function.
    """
    import torch

    if "weights_only" in inspect.signature(torch.load).parameters:
        return torch.load(path, map_location="cpu", weights_only=True)
    module: Any = types.ModuleType("weights_only")
    module.Unpickler = _WeightsUnpickler
    module.load = lambda file, **options: _WeightsUnpickler(file, **options).load()
    return torch.load(path, map_location="cpu", pickle_module=module)


_STORAGE = re.compile(r"[A-Za-z0-9]+Storage")


class _WeightsUnpickler(pickle.Unpickler):
    """Finds the classes and functions that tensors are stored by."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = (
            (module == "collections" and name == "OrderedDict")
            or (module == "torch" and (name in ("Size", "device") or _STORAGE.fullmatch(name)))
            or (
                module == "torch._utils"
                and name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter")
            )
        )
        if not allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a tensor")
        return super().find_class(module, name)


def allow_checkpoint_classes() -> None:
    """Lets ``torch.load`` read fairseq's checkpoints and broadcasts with weights only.

    PyTorch 2.6 made ``weights_only=True`` the default; fairseq saves ``argparse.Namespace`` and
    omegaconf's containers, and numbers of numpy in its meters. Where it resumes with several
    processes, the first one broadcasts the checkpoint with a ``_TensorPlaceholder``, a number, in
    place of each tensor. These classes only hold values.
    Goes when fairseq itself names them (its main branch switches the check off instead).
    """
    import numpy as np
    import omegaconf
    import torch
    from fairseq.distributed.utils import _TensorPlaceholder
    from omegaconf.base import ContainerMetadata, Metadata
    from omegaconf.nodes import (
        AnyNode,
        BooleanNode,
        EnumNode,
        FloatNode,
        IntegerNode,
        StringNode,
    )

    if not hasattr(torch.serialization, "add_safe_globals"):
        return
    multiarray = getattr(np, "_core", None) or np.core
    classes: list[Any] = [
        argparse.Namespace,
        collections.defaultdict,
        collections.OrderedDict,
        typing.Any,
        dict,
        int,
        list,
        omegaconf.DictConfig,
        omegaconf.ListConfig,
        ContainerMetadata,
        Metadata,
        AnyNode,
        BooleanNode,
        EnumNode,
        FloatNode,
        IntegerNode,
        StringNode,
        _TensorPlaceholder,
        np.ndarray,
        np.dtype,
        multiarray.multiarray.scalar,
        multiarray.multiarray._reconstruct,
        *{type(np.dtype(code)) for code in "?bhilqBHILQefd"},
    ]
    torch.serialization.add_safe_globals(classes)
