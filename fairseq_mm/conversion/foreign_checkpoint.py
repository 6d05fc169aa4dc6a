"""Reads checkpoints and pickles of other programs without running code from them.

A pickle can call any function. The unpickler of this module accepts only tensors, containers,
numbers, arrays and options (such as a Namespace), as written by Python 2 or 3 and any version of
NumPy. It replaces fairseq's meters by empty objects, and refuses all other objects. Checkpoints of
all versions of fairseq can be read with every version of PyTorch.
"""

import os
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Optional

from omegaconf import DictConfig, OmegaConf

from fairseq_mm.compat.evaluated_options import check_options
from fairseq_mm.compat.model_folders import is_model_folder, load_model_folder
from fairseq_mm.compat.unpickling import (
    VALUES,
    RestrictedUnpickler,
    checkpoints,
    explain_refusal,
    read_torch_file,
    refusal,
)
from fairseq_mm.data.model_folder import WEIGHTS_FILE
from fairseq_mm.errors import UserError


def checkpoint_path(checkpoint: str) -> str:
    """Return the file path of a checkpoint.

    If ``checkpoint`` is a folder, the file is ``model.pt`` in it, or ``model.safetensors`` in a
    model folder of this package. Otherwise the result is ``checkpoint``.
    """
    if not os.path.isdir(checkpoint):
        return checkpoint
    name = WEIGHTS_FILE if is_model_folder(checkpoint) else "model.pt"
    return os.path.join(checkpoint, name)


def checkpoint_config(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a checkpoint as nested dictionaries.

    ``state`` is the content of the checkpoint. The result is empty for checkpoints of fairseq
    before 0.10, which have ``args`` instead of a config.
    """
    cfg = state.get("cfg")
    if isinstance(cfg, DictConfig):
        cfg = OmegaConf.to_container(cfg)
    return cfg if isinstance(cfg, dict) else {}


def checkpoint_options(state: Mapping[str, Any], path: str) -> tuple[str, dict[str, Any]]:
    """Return the ``--arch`` of a checkpoint of fairseq, and the model's options that are not None.

    Args:
        state: Content of the checkpoint.
        path: Path of the checkpoint, for messages.
    """
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

    Args:
        path: Path of the file, or of the ``model.safetensors`` of a model folder.
    """
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such checkpoint.")
    if is_model_folder(path):
        return load_model_folder(path)
    try:
        state = read_torch_file(path, checkpoints())
    except Exception as error:  # torch raises nearly anything on other files
        raise refusal(path, error) from None
    if not isinstance(state, dict):
        raise UserError(f"{path}: must hold a dictionary, but holds a {type(state).__name__}.")
    # fairseq calls eval() on some options, so even a file without functions can run code
    check_options(state, path)
    return state


def read_plain_pickle(
    path: str, *, stand_ins: Optional[Mapping[tuple[str, str], Any]] = None
) -> Any:
    """Read a pickle of containers, numbers, arrays and options without running code.

    Args:
        path: Path of the pickle.
        stand_ins: Further allowed classes: dict from (module, name) of a class to a function that
            builds the object that replaces an object of the class.

    Returns:
        Content of the pickle. Byte strings of Python 2 are decoded as Latin-1;
        :func:`repaired_text` repairs UTF-8 strings.
    """
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file.")
    try:
        with open(path, "rb") as file:
            table = {**VALUES, **(stand_ins or {})}
            # Latin-1 has a letter for each byte, so that numpy's arrays in Python 2's byte strings
            # survive
            return RestrictedUnpickler(file, table, encoding="latin1").load()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except Exception as error:  # pickle raises nearly anything on other files
        raise UserError(
            f"{path}: is no pickle that can be read safely (containers, numbers and options, "
            f"nothing that runs): {explain_refusal(error)}."
        ) from None


def repaired_text(text: str) -> str:
    """Repair a text that is UTF-8, but was decoded as Latin-1, as in a pickle of Python 2.

    A text that is not UTF-8 is returned unchanged.
    """
    try:
        return text.encode("latin1").decode("utf-8")
    except UnicodeError:  # it was text already
        return text
