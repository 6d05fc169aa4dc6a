"""Loads fairseq's checkpoints safely: no command or model can run code from them."""

import argparse
import collections
import contextlib
import glob
import os
import re
import sys
import traceback
import types
import typing
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from fairseq_mm.compat import activation
from fairseq_mm.compat.evaluated_options import EVALUATED, check_options, evaluate_literal
from fairseq_mm.compat.scope import names_ours
from fairseq_mm.compat.unpickling import (
    Dtype,
    checkpoints,
    new_scalar,
    read_torch_file,
    refusal,
    tensors,
)
from fairseq_mm.errors import UserError, WeightsError, is_user_error

# where fairseq reads files that a user, or the options of a checkpoint, name
LOADING = (
    "checkpoint_utils.py",
    "data/codedataset.py",
    "models/speech_to_text/xm_transformer.py",
    "models/text_to_speech/vocoder.py",
)
# entry of the task's state in checkpoints whose validation scores are of the average
AVERAGE_KEY = "uses_ema"


def get_module_name(place: str) -> str:
    file = place.partition(":")[0]
    return "fairseq." + file[: -len(".py")].replace("/", ".")


# modules that evaluate text
EVALUATING = ("fairseq.utils", *sorted({get_module_name(place) for place in EVALUATED}))


def guard_loading() -> None:
    """Replace ``torch.load`` in fairseq's modules, so that no checkpoint can run code.

    The pickle of a checkpoint or its options could contain code. The replacement checks both, in
    ``fairseq-mm``, in ``from_pretrained``, in fairseq's commands, and if a model loads another
    model. Without it, fairseq unpickles anything with PyTorch up to 2.5, and fairseq's main branch
    with every version of PyTorch.
    """
    for file in LOADING:
        module = sys.modules.get(get_module_name(file))
        if module is not None:
            vars(module)["torch"] = _GuardedTorch()


class _GuardedTorch(types.ModuleType):
    """Module that replaces ``torch`` in modules of fairseq: ``torch`` with a safe ``load``.

    ``load`` accepts the same files with every version of PyTorch. It ignores the argument
    ``weights_only`` and the environment variables that set it.
    """

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)

    @staticmethod
    def load(file: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
        name = _describe_file(file)
        try:
            state = read_torch_file(file, checkpoints(), map_location=map_location)
        except OSError:
            raise
        except Exception as error:  # PyTorch and pickle raise nearly anything on a crafted file
            raise refusal(name, error, kind="fairseq checkpoint") from None
        check_options(state, name)
        check_weights(state, name)
        activate_for(state)
        return state


def activate_for(state: Any) -> None:
    """Apply all repairs of fairseq if a checkpoint has a model or task of this package.

    Args:
        state: Content of the checkpoint.
    """
    if activation.are_active():
        return
    options = [state.get("cfg"), state.get("args")] if isinstance(state, Mapping) else []
    # options of a damaged file may raise anything when they are read; fairseq refuses them later
    with contextlib.suppress(Exception):
        if any(names_ours(section) for section in options):
            activation.activate()


def check_weights(state: Any, name: str) -> None:
    """Raise UserError for complex weights, whose imaginary part the model would lose.

    Args:
        state: Content of the checkpoint.
        name: Path of the checkpoint, for messages.
    """
    weights = state.get("model") if isinstance(state, Mapping) else None
    for key, weight in weights.items() if isinstance(weights, Mapping) else ():
        if hasattr(weight, "is_complex") and weight.is_complex():
            raise UserError(f"{name}: its weights must be real numbers, but {key} is complex.")


def use_averaged_weights(state: Any, path: str) -> None:
    """Replace a checkpoint's weights by their average if its task has validated the average.

    With ``--store-ema``, a checkpoint has both the weights and their moving average. fairseq itself
    neither validates nor loads the average. With ``--use-ema``, a task of this package validates
    it, and every command that builds the model of the checkpoint uses the average as weights. A
    training that is resumed or finetuned from the checkpoint continues with the original weights.

    Args:
        state: Content of the checkpoint, which is changed.
        path: Path of the checkpoint, for messages.
    """
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


# part of the names of weights in a shard
_SHARD_KEY = "flat_param_0"


def _shard_error(path: str) -> UserError:
    return UserError(
        f"{path}: is a shard of a training with --use-sharded-state: give the name without "
        "-shard0, and --checkpoint-shard-count with the number of its processes."
    )


@contextlib.contextmanager
def named_failures(
    path: str, what: str = "no model can be made of this checkpoint"
) -> Iterator[None]:
    """Convert exceptions inside the context to errors of one line that name the checkpoint.

    For developers of models, the message ends with the source file and line of the exception.

    Args:
        path: Path of the checkpoint.
        what: Description of the failure, for the message.
    """
    try:
        yield
    except WeightsError as error:
        # its message quotes PyTorch's, which is its context, only in part
        if _SHARD_KEY in str(error.__context__):
            raise _shard_error(path) from error
        raise UserError(f"{path}: {error}") from None
    except UserError:
        raise
    except OSError as error:
        named = error.filename
        if named is None or os.fsdecode(named) in path.split(os.pathsep):
            raise
        raise UserError(
            f"{path}: {what}: it names {named}, which cannot be read ({error.strerror})."
        ) from error
    except Exception as error:
        if is_user_error(error):
            raise
        # fairseq's own message names the model; its cause names the tensor
        while error.__cause__ is not None:
            error = error.__cause__  # type: ignore[assignment]
        if _SHARD_KEY in str(error):
            raise _shard_error(path) from error
        # anything can fail: options may have any type, and build task and model before weights are
        # compared
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"{path}: {what}: {type(error).__name__}: "
            f"{str(error)[:500]} ({os.path.basename(frame.filename)}:{frame.lineno})"
        ) from error


def _describe_file(file: Any) -> str:
    name = getattr(file, "name", file)
    return os.fspath(name) if isinstance(name, (str, os.PathLike)) else "checkpoint"


def check_is_whole(path: str) -> None:
    """Check that a checkpoint is a regular file and was written completely, if it exists."""
    refuse_folder(path, path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path}: is a device or a pipe, but must be a file.")
    if not os.path.isfile(path) or not _is_cut(path):
        return
    intact = _newest_intact_beside(path)
    remedy = "there is no intact checkpoint beside it."
    if intact is not None:
        remedy = (
            f"the newest intact checkpoint beside it is {intact}: give that one, or copy it over "
            f"{os.path.basename(path)}."
        )
    raise UserError(
        f"{path}: is cut off after {os.path.getsize(path):,} bytes, as by a kill of the process "
        f"that wrote it; {remedy}"
    )


def refuse_folder(path: str, name: str) -> None:
    """Check that a path that must be a checkpoint is not a folder.

    Args:
        path: Path to check.
        name: Description of the path, for the message.
    """
    if not os.path.isdir(path):
        return
    checkpoints = sorted(glob.glob(os.path.join(glob.escape(path), "*.pt")), key=os.path.getmtime)
    names = [os.path.basename(checkpoint) for checkpoint in reversed(checkpoints)]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    content = ", ".join(names[:5]) + more or "no checkpoint"
    raise UserError(f"{name}: must be a checkpoint, but is a folder, which has {content}.")


def _is_cut(path: str) -> bool:
    """Return True if a file is empty, starts with zeros, or is a zip archive without its end."""
    with open(path, "rb") as file:
        head = file.read(4)
    # PyTorch writes zip archives since version 1.6, and their directory is at the end;
    # a power failure can leave a file of zeros, whose size was already allocated
    return head in (b"", b"\0\0\0\0") or (head[:2] == b"PK" and not zipfile.is_zipfile(path))


def _newest_intact_beside(path: str) -> Optional[str]:
    path = os.fspath(path)
    folder = os.path.dirname(path)
    shard = _shard_of(path)
    others = [
        name
        for name in glob.glob(os.path.join(glob.escape(folder), "checkpoint*.pt"))
        if name != path and _shard_of(name) == shard and os.path.isfile(name)
    ]
    others.sort(key=os.path.getmtime, reverse=True)
    return next((name for name in others if not _is_cut(name)), None)


def _shard_of(path: str) -> Optional[str]:
    match = re.search(r"-shard\d+(?=\.pt$)", path)
    return match and match.group()


def guard_evaluation() -> None:
    """Replace ``eval`` in fairseq's modules by a function that reads literals only.

    :func:`guard_loading` already checks the known options that fairseq evaluates; this protects
    against options that the table ``EVALUATED`` lacks.
    """
    for name in EVALUATING:
        module = sys.modules.get(name)
        if module is not None:
            vars(module)["eval"] = evaluate_literal


def load_weights(path: str) -> Any:
    """Load a file of tensors, in nested dictionaries and lists, onto the CPU.

    The file cannot run code, whatever the version of PyTorch.

    Raises:
        pickle.UnpicklingError: if the file needs any other class or function.
    """
    return read_torch_file(path, tensors())


def can_allow_classes() -> bool:
    import torch

    return hasattr(torch.serialization, "add_safe_globals")


def allow_checkpoint_classes() -> None:
    """Allow ``torch.load`` with ``weights_only=True`` to read the classes of fairseq's checkpoints.

    ``weights_only=True`` is the default since PyTorch 2.6. This repair is for objects that
    fairseq's processes send to each other, and for programs that call ``torch.load`` themselves.
    Checkpoints that fairseq or this package loads are read by
    :mod:`fairseq_mm.compat.unpickling` instead.
    """
    import numpy as np
    import omegaconf
    import torch
    from fairseq.data import Dictionary
    from fairseq.distributed.utils import _TensorPlaceholder
    from omegaconf.base import ContainerMetadata, Metadata
    from omegaconf.nodes import AnyNode, BooleanNode, EnumNode, FloatNode, IntegerNode, StringNode

    # such objects only hold values
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
        # replaces tensors in a checkpoint that the first process sends to the others
        _TensorPlaceholder,
        # numpy's numbers are in fairseq's meters
        Dtype,
        # in the state of fairseq's tasks of audio
        Dictionary,
    ]
    # with numpy's own class, a file could turn bytes into pointers, see Dtype
    core = "_core" if hasattr(np, "_core") else "core"
    named: list[Any] = [(Dtype, "numpy.dtype"), (new_scalar, f"numpy.{core}.multiarray.scalar")]
    if not hasattr(torch.serialization, "get_unsafe_globals_in_checkpoint"):
        named = []  # PyTorch 2.4 and 2.5 accept no names, and refuse nothing by default
    torch.serialization.add_safe_globals([*classes, *named])
