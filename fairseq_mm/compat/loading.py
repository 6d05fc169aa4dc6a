"""Loads checkpoints safely: no command or model can run code from them.

Every file is read by ``torch.load`` with ``weights_only=True``. :func:`allow_checkpoint_classes`
lists the classes that fairseq's checkpoints need; objects of these classes only hold values.
"""

import argparse
import collections
import contextlib
import os
import pickle
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fairseq_mm.compat import activation
from fairseq_mm.compat.scope import names_ours
from fairseq_mm.errors import UserError, find_message

# modules of fairseq that read files which a user, or the options of a checkpoint, name
LOADING = (
    "fairseq.checkpoint_utils",
    "fairseq.data.codedataset",
    "fairseq.models.speech_to_text.xm_transformer",
    "fairseq.models.text_to_speech.vocoder",
)
# entry of the task's state in checkpoints whose validation scores are of the average
AVERAGE_KEY = "uses_ema"
_METERS = ("AverageMeter", "TimeMeter", "StopwatchMeter")
_SIMPLE_DTYPE = re.compile(r"[<>=|]?(\?|[bBiufcSUV]\d+)")


class Dtype:
    """Replacement of ``numpy.dtype`` in a pickle, which accepts only types of numbers and texts."""

    def __init__(self, code: Any, *unused: Any) -> None:
        # a description could claim that a structure of objects has no objects; numpy would then
        # read bytes of the file as pointers
        if not isinstance(code, str) or not _SIMPLE_DTYPE.fullmatch(code):
            raise pickle.UnpicklingError(f"it asks for the numpy type {str(code)[:100]}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ("<", ">", "=", "|") or any(x is not None for x in state[2:5]):
            raise pickle.UnpicklingError("its numpy type is a structure")
        self.dtype = self.dtype.newbyteorder(state[1])


def new_scalar(kind: Dtype, content: Any) -> Any:
    """Return a number of numpy; replaces numpy's function of pickles."""
    content = content.encode("latin1") if isinstance(content, str) else content  # by Python 2
    if type(content) is not bytes or len(content) != kind.dtype.itemsize:
        raise pickle.UnpicklingError("its number of numpy has another size than its type")
    return np.frombuffer(content, kind.dtype)[0]


def allow_checkpoint_classes() -> None:
    """Allow ``torch.load`` with ``weights_only=True`` to read the classes of fairseq's checkpoints.

    Objects that fairseq's processes send to each other need the same classes.
    """
    import omegaconf
    import torch
    from fairseq.data import Dictionary
    from fairseq.distributed.utils import _TensorPlaceholder
    from fairseq.logging import meters
    from omegaconf import base, nodes

    classes: list[Any] = [
        *(argparse.Namespace, collections.defaultdict, typing.Any, dict, int, list),
        *(omegaconf.DictConfig, omegaconf.ListConfig, base.ContainerMetadata, base.Metadata),
        *(nodes.AnyNode, nodes.BooleanNode, nodes.EnumNode, nodes.FloatNode, nodes.IntegerNode),
        nodes.StringNode,
        # replaces tensors in a checkpoint that the first process sends to the others
        _TensorPlaceholder,
        # the state of fairseq's audio tasks contains dictionaries
        Dictionary,
        # numbers of numpy are in fairseq's meters; numpy 2 has renamed the module
        Dtype,
        (Dtype, "numpy.dtype"),
        *((new_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
        # checkpoints of fairseq before 0.9 have meters, under an older name of the module
        *(getattr(meters, name) for name in _METERS),
        *((getattr(meters, name), f"fairseq.meters.{name}") for name in _METERS),
    ]
    torch.serialization.add_safe_globals(classes)


def load_torch_file(file: Any, map_location: Any = "cpu") -> Any:
    """Load a file that ``torch.save`` has written, without running code from it. Raise UserError if
    it needs a class that is not allowed, or is damaged."""
    import torch

    try:
        return torch.load(file, map_location=map_location, weights_only=True)
    except Exception as error:  # torch raises nearly anything on other files
        if isinstance(error, OSError) and error.filename is not None:
            raise
        name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", "checkpoint")
        match = re.search(r"GLOBAL (\S+)", str(error))
        lines = str(error).rpartition("WeightsUnpickler error: ")[2].strip().splitlines()
        reason = lines[0][:300].rstrip(".") if lines else type(error).__name__
        if match:
            reason = f"it asks for {match[1]}, which is no plain value"
        raise UserError(f"{name}: cannot be loaded safely (with weights only): {reason}.") from None


def guard_loading() -> None:
    """Replace ``torch.load`` in fairseq's modules by :func:`load_torch_file`.

    fairseq itself unpickles anything in some versions, and its callers may ask for that.
    """
    allow_checkpoint_classes()
    for name in LOADING:
        if name in sys.modules:
            vars(sys.modules[name])["torch"] = _GuardedTorch()


class _GuardedTorch(types.ModuleType):
    """Module ``torch`` with a safe ``load``, for modules of fairseq."""

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)

    @staticmethod
    def load(file: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
        # options such as weights_only=False are ignored
        state = load_torch_file(file, map_location)
        activate_for(state)
        return state


def activate_for(state: Any) -> None:
    """Apply all repairs of fairseq if a checkpoint has a model or task of this package."""
    options = [state.get("cfg"), state.get("args")] if isinstance(state, Mapping) else []
    # options of a damaged file may raise anything when they are read; fairseq refuses them later
    with contextlib.suppress(Exception):
        if any(names_ours(section) for section in options):
            activation.activate()


def use_averaged_weights(state: Any, path: str) -> None:
    """Replace a checkpoint's weights by their average if its task validated the average
    (``--use-ema``). A training that is resumed or finetuned keeps the original weights."""
    task_state = state.get("task_state") if isinstance(state, Mapping) else None
    if not isinstance(task_state, Mapping) or not task_state.get(AVERAGE_KEY):
        return
    extra_state = state.get("extra_state")
    average = extra_state.pop("ema", None) if isinstance(extra_state, dict) else None
    if not isinstance(average, Mapping):
        raise UserError(
            f"{path}: must contain the average of its weights (--use-ema), but does not."
        )
    state["model"] = average
    # an exported folder has the average as its weights, and nothing to replace
    state["task_state"] = {key: x for key, x in task_state.items() if key != AVERAGE_KEY}


@contextlib.contextmanager
def named_failures(
    path: str, what: str = "no model can be made of this checkpoint"
) -> Iterator[None]:
    """Convert exceptions to errors of one line that name the checkpoint: options of a checkpoint
    from elsewhere may have any type, so that anything can fail."""
    try:
        yield
    except OSError:
        raise
    except UserError as error:
        # an error that names the checkpoint, or a file of its folder, stays as it is
        if str(error).startswith((path, os.path.dirname(path) or path)):
            raise
        raise UserError(f"{path}: {error}") from None
    except Exception as error:
        if find_message(error) is not None:
            raise
        raise UserError(f"{path}: {what}: {type(error).__name__}: {str(error)[:500]}") from error
