"""Safe reading of checkpoint files of other programs.

A pickle can call any function. The unpickler used here accepts tensors, containers and options. It
replaces fairseq's meters by empty objects, and refuses everything else. Checkpoints of all versions
of fairseq can therefore be read with every version of PyTorch.
"""

import os
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fairseq_mm.compat.evaluated_options import check_options
from fairseq_mm.compat.unpickling import checkpoints, read_torch_file, refusal
from fairseq_mm.errors import UserError


def checkpoint_path(checkpoint: str) -> str:
    """Return the path of a checkpoint: the file itself, or a folder's ``model.pt``."""
    return os.path.join(checkpoint, "model.pt") if os.path.isdir(checkpoint) else checkpoint


def checkpoint_options(state: Mapping[str, Any], path: str) -> tuple[str, dict[str, Any]]:
    """Return the architecture of a checkpoint of fairseq, and its options that are not None.

    Args:
        state: Content of the checkpoint.
        path: Path of the checkpoint, for messages.

    Raises:
        UserError: if it has no model, or no options.
    """
    cfg, found = state.get("cfg"), {}
    if isinstance(cfg, DictConfig):
        cfg = OmegaConf.to_container(cfg)
    for part in (cfg.get("model") if isinstance(cfg, dict) else None, state.get("args")):
        if isinstance(part, Namespace):
            part = vars(part)
        if isinstance(part, dict):
            found.update({name: x for name, x in part.items() if x is not None})
    if not isinstance(state.get("model"), dict) or not found:
        raise UserError(f"{path}: is no checkpoint of fairseq: it has no model, or no options.")
    return str(found.get("_name") or found.get("arch")), found


def read_foreign_checkpoint(path: str) -> dict[str, Any]:
    """Read a dictionary that ``torch.save`` has written, onto the CPU.

    Args:
        path: Path of the file.

    Raises:
        UserError: if it is no such file, needs more than tensors, containers and options, or an
            option that fairseq evaluates is no literal.
    """
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such checkpoint.")
    try:
        state = read_torch_file(path, checkpoints())
    except Exception as error:  # torch raises nearly anything on other files
        raise refusal(path, error) from None
    if not isinstance(state, dict):
        raise UserError(f"{path}: must hold a dictionary, but holds a {type(state).__name__}.")
    check_options(state, path)
    return state
