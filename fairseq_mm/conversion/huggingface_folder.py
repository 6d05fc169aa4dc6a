"""Reads folders in the format of Hugging Face's ``save_pretrained``."""

import os
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fairseq_mm.conversion.foreign_checkpoint import read_foreign_checkpoint
from fairseq_mm.data.input_files import read_json
from fairseq_mm.data.model_folder import FORMAT
from fairseq_mm.errors import UserError, import_extra

# in the order of preference: safetensors can hold nothing but tensors
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


@dataclass
class ConvertedPretrained:
    """Summary of a conversion of BART or T5 from Hugging Face's format.

    Attributes:
        options: Options of fairseq's model that differ from the defaults of ``arch``.
        parameters: Number of weights.
        words: Number of words in the dictionary, with special symbols.
        notes: Assumptions and omissions of the conversion, one sentence each.
    """

    arch: str
    options: dict[str, Any]
    parameters: int
    words: int
    notes: list[str] = field(default_factory=list)


def read_config(folder: str) -> dict[str, Any]:
    """Read and return ``config.json`` in a folder; it must have the field ``model_type``."""
    path = os.path.join(folder, "config.json")
    config = read_json(path)
    if isinstance(config, dict) and config.get("format") == FORMAT:
        raise UserError(
            f"{folder}: is a model folder of fairseq-mm export, which needs no conversion."
        )
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UserError(f"{path}: must have `model_type`, the kind of model, but has not.")
    return config


def read_weights(folder: str) -> dict[str, Tensor]:
    """Read the tensors of ``model.safetensors`` or ``pytorch_model.bin`` in a folder, by name.

    The weights may be in one file or in several files with an index; their dtypes are kept.
    """
    for name in _WEIGHTS:
        path = os.path.join(folder, name)
        index = f"{path}.index.json"
        if os.path.isfile(path):
            return _read(path)
        if os.path.isfile(index):
            return _read_parts(folder, index)
    raise UserError(f"{folder}: has neither {' nor '.join(_WEIGHTS)}.")


def _read_parts(folder: str, index: str) -> dict[str, Tensor]:
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    # an index from elsewhere could name any file of this machine
    if not isinstance(places, dict) or any(os.path.basename(x) != x for x in places.values()):
        raise UserError(f"{index}: must have `weight_map` with files of its folder, but has not.")
    weights: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        weights.update(_read(os.path.join(folder, name)))
    return weights


def _read(path: str) -> dict[str, Tensor]:
    if not path.endswith(".safetensors"):
        # not with torch.load, which may run what a pickle calls
        state = read_foreign_checkpoint(path)
        return {name: x.detach() for name, x in state.items() if isinstance(x, Tensor)}
    purpose = "reading a safetensors file"
    library = import_extra("safetensors.torch", extra="convert", purpose=purpose)
    try:
        return library.load_file(path)
    except Exception as error:  # old versions have no class of their own for it
        raise UserError(f"{path}: is no safetensors file ({error}).") from None
