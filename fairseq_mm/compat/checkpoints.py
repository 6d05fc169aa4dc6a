"""Reading checkpoints with nothing run that they name."""

import argparse
import collections
import typing
from typing import Any

from fairseq_mm.compat.unpickling import Dtype, new_scalar, read_torch_file, tensors


def load_weights(path: str) -> Any:
    """``torch.load`` of tensors: whatever else the file asks for is refused, with every PyTorch.

    Args:
        path: file of tensors, and of containers of them.

    Returns:
        the file's content, on the CPU.

    Raises:
        pickle.UnpicklingError: if the file needs any other class or function.
    """
    return read_torch_file(path, tensors())


def can_allow_classes() -> bool:
    import torch

    return hasattr(torch.serialization, "add_safe_globals")


def allow_checkpoint_classes() -> None:
    """Lets ``torch.load`` read fairseq's checkpoints and broadcasts with weights only.

    For programs that call ``torch.load`` themselves, and for what processes send each other;
    fairseq's own loading and ours go through :mod:`fairseq_mm.compat.unpickling`.
    PyTorch 2.6 made ``weights_only=True`` the default; fairseq saves ``argparse.Namespace`` and
    omegaconf's containers, and numbers of numpy in its meters. Where it resumes with several
    processes, the first one broadcasts the checkpoint with a ``_TensorPlaceholder``, a number, in
    place of each tensor. Tasks of audio keep a ``Dictionary`` in their state. These classes only
    hold values.
    Goes when fairseq itself names them (its main branch switches the check off instead).
    """
    import numpy as np
    import omegaconf
    import torch
    from fairseq.data import Dictionary
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
        Dtype,
        Dictionary,
    ]
    # numpy's own would let a file make pointers of bytes, see Dtype
    core = "_core" if hasattr(np, "_core") else "core"
    named: list[Any] = [(Dtype, "numpy.dtype"), (new_scalar, f"numpy.{core}.multiarray.scalar")]
    if not hasattr(torch.serialization, "get_unsafe_globals_in_checkpoint"):
        named = []  # PyTorch 2.4 and 2.5 take no names, and need none: nothing is refused there
    torch.serialization.add_safe_globals([*classes, *named])
