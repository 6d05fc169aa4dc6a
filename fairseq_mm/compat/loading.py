"""Loads checkpoints and model folders safely: no command or model can run code from them.

Every file is read by ``torch.load`` with ``weights_only=True``. :func:`allow_checkpoint_classes`
lists the classes that fairseq's checkpoints need; objects of these classes only hold values. A
model folder (``config.json`` and ``model.safetensors``) is read in the form of a checkpoint.
"""

import argparse
import collections
import functools
import os
import pickle
import re
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from fairseq_mm.compat.activation import activate_for, names_ours
from fairseq_mm.data.model_folder import CONFIG_FILE, WEIGHTS_FILE, read_model_folder
from fairseq_mm.errors import UserError

# modules of fairseq that read files which a user, or the options of a checkpoint, name
LOADING = (
    "fairseq.checkpoint_utils",
    "fairseq.data.codedataset",
    "fairseq.models.speech_to_text.xm_transformer",
    "fairseq.models.text_to_speech.vocoder",
)
# entry of the task's state in checkpoints whose validation scores are of the average
AVERAGE_KEY = "uses_ema"
# entry of a state that was read from a model folder: the content of config.json
FOLDER_KEY = "model_folder"
# name of the image network that was trained with a model (--photos), in the model
NETWORK_NAME = "image_network"
NETWORK_PREFIX = f"{NETWORK_NAME}."
# True while a trainer loads the checkpoint from which it resumes
is_resuming = False
_METERS = ("AverageMeter", "TimeMeter", "StopwatchMeter")
_SIMPLE_DTYPE = re.compile(r"[<>=|]?(\?|[bBiufcSUV]\d+)")


class Dtype:
    """Replacement of ``numpy.dtype`` in pickles that accepts only dtypes of numbers and strings."""

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
    """Return a NumPy number; replaces the function of NumPy that pickles of numbers call."""
    content = content.encode("latin1") if isinstance(content, str) else content  # by Python 2
    if type(content) is not bytes or len(content) != kind.dtype.itemsize:
        raise pickle.UnpicklingError("its number of numpy has another size than its type")
    return np.frombuffer(content, kind.dtype)[0]


def allow_checkpoint_classes() -> None:
    """Allow ``torch.load`` with ``weights_only=True`` to read the classes of fairseq's checkpoints.

    Objects that fairseq's processes send to each other are of the same classes.
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

    Some versions of fairseq unpickle any object, and callers may ask for this.
    """
    allow_checkpoint_classes()
    for name in LOADING:
        if name in sys.modules:
            vars(sys.modules[name])["torch"] = _GuardedTorch()


class _GuardedTorch(types.ModuleType):
    """Stand-in for the module ``torch``, with a safe ``load``, in modules of fairseq."""

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


def use_averaged_weights(state: Any, path: str) -> None:
    """Replace a checkpoint's weights by their moving average if training validated the average
    (``--use-ema``). Resumed training and finetuning keep the original weights."""
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


def hook_loaded_states() -> None:
    """Make fairseq read model folders and averaged weights. When it resumes a training, make it
    read the original weights, and the number of processes to which the data position refers."""
    from fairseq import checkpoint_utils

    load = checkpoint_utils.load_checkpoint_to_cpu

    @functools.wraps(load)
    def load_checkpoint_to_cpu(
        path: str, arg_overrides: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if is_model_folder(path):
            return load_model_folder(path, arg_overrides)
        state = load(path, arg_overrides, *args, **kwargs)
        if not is_resuming:
            use_averaged_weights(state, path)
            return state
        # fairseq's position in the data counts batches of one process
        position, cfg = state.get("extra_state", {}).get("train_iterator"), state.get("cfg")
        if position and cfg and names_ours(cfg) and "distributed_training" in cfg:
            processes = cfg["distributed_training"]["distributed_world_size"]
            position.setdefault("num_shards", processes // cfg["common"]["model_parallel_size"])
        return state

    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu


def is_model_folder(path: str) -> bool:
    """Return True if a path is a model folder, or the ``model.safetensors`` of one."""
    if os.path.isdir(path):
        return all(os.path.isfile(os.path.join(path, x)) for x in (CONFIG_FILE, WEIGHTS_FILE))
    return os.path.basename(path) == WEIGHTS_FILE


def load_checkpoint(path: str, arg_overrides: Optional[Mapping[str, Any]] = None) -> dict[str, Any]:
    """Load a checkpoint file or a model folder onto the CPU, without executing pickled code, like
    fairseq's ``load_checkpoint_to_cpu``.

    The weights are their moving average if the training had ``--use-ema``. For a model folder,
    ``FOLDER_KEY`` has the content of ``config.json``.
    """
    from fairseq import checkpoint_utils

    if is_model_folder(path):
        return load_model_folder(path, arg_overrides)
    # called through the module, because the repairs replace its function
    state = checkpoint_utils.load_checkpoint_to_cpu(path, arg_overrides)
    use_averaged_weights(state, path)
    return state


def load_model_folder(
    path: str, arg_overrides: Optional[Mapping[str, Any]] = None
) -> dict[str, Any]:
    """Load a model folder in the form of a checkpoint, see :func:`load_checkpoint`."""
    from fairseq.dataclass.utils import overwrite_args_by_name
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.tasks import TASK_REGISTRY
    from omegaconf import OmegaConf, open_dict

    config, weights = read_model_folder(path)
    sections: dict[str, dict[str, Any]] = {
        "model": {**config["model_options"], "_name": config["architecture"]},
        "task": {**config["task_options"], "_name": config["task"]},
        "common": {"user_dir": config["plugin"]},
    }
    training = {name: x for name, x in config["training"].items() if x is not None}
    state: dict[str, Any] = {
        "args": None,  # fairseq looks up this place of the options before 0.10
        "cfg": sections,
        "model": weights,
        "criterion": None,
        "optimizer_history": [{x: training[x] for x in ("num_updates",) if x in training}],
        "task_state": config["task_state"],
        "extra_state": {
            "train_iterator": {"epoch": training.get("epoch", 1), "iterations_in_epoch": 0}
        },
        FOLDER_KEY: config,
    }
    activate_for(state)
    cfg = OmegaConf.create(sections)
    # OmegaConf 2.0, which stock fairseq asks for, takes no argument for this flag
    cfg._set_flag("allow_objects", True)
    if arg_overrides is not None:
        overwrite_args_by_name(cfg, arg_overrides)
    # fairseq's models and tasks without a dataclass read their options from a Namespace
    kinds = {
        "model": ARCH_MODEL_REGISTRY.get(config["architecture"]),
        "task": TASK_REGISTRY.get(config["task"]),
    }
    with open_dict(cfg):
        for name, kind in kinds.items():
            if kind is not None and getattr(kind, "__dataclass", None) is None:
                plain: Any = OmegaConf.to_container(cfg[name])
                cfg[name] = argparse.Namespace(**plain)
    state["cfg"] = cfg
    return state


def has_network(weights: Mapping[str, Any]) -> bool:
    """Return True if a model's state dict contains an image network."""
    return any(str(name).startswith(NETWORK_PREFIX) for name in weights)
