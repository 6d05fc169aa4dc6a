"""Loads model folders (``config.json`` and ``model.safetensors``) like fairseq's checkpoints."""

import argparse
import os
from collections.abc import Mapping
from typing import Any, Optional

from fairseq_mm.compat.loading import activate_for, use_averaged_weights
from fairseq_mm.data.model_folder import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    read_model_folder,
)

# entry of a state that was read from a model folder: the content of config.json
FOLDER_KEY = "model_folder"


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
