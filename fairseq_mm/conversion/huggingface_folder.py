"""A model's folder as Hugging Face's ``save_pretrained`` writes it: configuration and weights."""

import os
from typing import Any

from torch import Tensor

from fairseq_mm.conversion.foreign_checkpoint import read_foreign_checkpoint
from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError, import_extra

# in the order of preference: safetensors can hold nothing but tensors
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_PURPOSE = "reading or writing a safetensors file"


def read_config(folder: str) -> dict[str, Any]:
    """Read ``config.json``, which must have ``model_type``.

    Raises:
        UserError: if the file is missing, or describes no model.
    """
    path = os.path.join(folder, "config.json")
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UserError(f"{path}: must have `model_type`, the kind of model, but has not.")
    return config


def read_weights(folder: str) -> dict[str, Tensor]:
    """Read the tensors of ``model.safetensors`` or ``pytorch_model.bin``.

    The weights may be in one file or in several files with an index; dtypes do not change.

    Raises:
        UserError: if there are no weights, or a file is damaged.
    """
    for name in _WEIGHTS:
        path = os.path.join(folder, name)
        index = f"{path}.index.json"
        if os.path.isfile(path):
            return _read(path)
        if os.path.isfile(index):
            return _read_parts(folder, index)
    raise UserError(f"{folder}: has neither {' nor '.join(_WEIGHTS)}.")


def write_safetensors(weights: dict[str, Tensor], path: str) -> None:
    """Write weights in the format of safetensors.

    Raises:
        UserError: if the package is missing.
    """
    library = import_extra("safetensors.torch", extra="convert", purpose=_PURPOSE)
    plain = {name: x.detach().contiguous() for name, x in weights.items()}
    library.save_file(plain, path, metadata={"format": "pt"})


def _read_parts(folder: str, index: str) -> dict[str, Tensor]:
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict):
        raise UserError(f"{index}: must have `weight_map`, but has not.")
    weights: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        if os.path.basename(name) != name:
            raise UserError(f"{index}: names a file outside the folder: {name!r:.80}.")
        weights.update(_read(os.path.join(folder, name)))
    missing = sorted(set(places) - set(weights))
    if missing:
        raise UserError(f"{index}: its files lack {missing[0]} ({len(missing)} tensors in all).")
    return weights


def _read(path: str) -> dict[str, Tensor]:
    if not path.endswith(".safetensors"):
        state = read_foreign_checkpoint(path)
        return {name: x.detach() for name, x in state.items() if isinstance(x, Tensor)}
    library = import_extra("safetensors.torch", extra="convert", purpose=_PURPOSE)
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file.")
    try:
        return library.load_file(path)
    except Exception as error:  # the package's own kind, which old versions do not have
        raise UserError(f"{path}: is no safetensors file ({error}).") from None
