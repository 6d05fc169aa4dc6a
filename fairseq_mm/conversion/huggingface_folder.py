"""Reads folders in the format of Hugging Face's ``save_pretrained``."""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError, file_errors
from fairseq_mm.extract.weights import read_state_dict

# in the order of preference: safetensors can hold nothing but tensors
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


@dataclass
class ConvertedPretrained:
    """Summary of a conversion of BART or T5 from Hugging Face's format."""

    arch: str
    options: dict[str, Any]  # options of fairseq's model that differ from the defaults of ``arch``
    parameters: int  # number of weights
    words: int  # number of words in the dictionary, with special symbols
    # assumptions and omissions of the conversion, one sentence each
    notes: list[str] = field(default_factory=list)


# option -> key of config.json, its default, and its values: a type of numbers, several values, or
# the option's value for each value in config.json. A default may be the name of another option
Fields = Mapping[str, tuple[str, Any, Any]]


def read_options(config: Mapping[str, Any], path: str, fields: Fields) -> dict[str, Any]:
    """Convert ``config``, the content of ``config.json``, to options of fairseq's model."""
    options: dict[str, Any] = {}
    for name, (key, default, values) in fields.items():
        value = config.get(key)
        value = options.get(default, default) if value is None else value
        if values in (int, float):
            number: Any = float(value) if values is float and type(value) is int else value
            is_allowed, wanted = type(number) is values and number >= 0, "a number"
        else:
            number, is_allowed = value, value in values
            wanted = " or ".join(map(json.dumps, values))
        if not is_allowed:
            raise UserError(f"{path}: `{key}` must be {wanted}, but is {json.dumps(value)}.")
        options[name] = values[value] if isinstance(values, Mapping) else number
    return options


def read_weights(folder: str) -> dict[str, Tensor]:
    """Read the tensors of ``model.safetensors`` or ``pytorch_model.bin`` in a folder, by name.

    The weights may be in one file or in several files with an index; their dtypes are kept.
    """
    safe, pickled = (os.path.join(folder, name) for name in _WEIGHTS)
    has_safe = os.path.isfile(safe) or os.path.isfile(f"{safe}.index.json")
    path = safe if has_safe else pickled
    index = f"{path}.index.json"
    if os.path.isfile(path) or not os.path.isfile(index):
        return read_state_dict(path)
    with file_errors(index):
        names = sorted(set(read_json(index)["weight_map"].values()))
        # an index from elsewhere could name any file of this machine
        if any(os.path.basename(name) != name for name in names):
            raise ValueError("`weight_map` must name files of its folder")
    weights: dict[str, Tensor] = {}
    for name in names:
        weights.update(read_state_dict(os.path.join(folder, name)))
    return weights


def pop_embeddings(weights: dict[str, Tensor], names: Collection[str], folder: str) -> Tensor:
    """Remove all copies of the shared embeddings from ``weights``, and return one as float32."""
    # save_pretrained writes only the shared table, but older versions wrote every copy
    copies = [weights.pop(name).float() for name in names if name in weights]
    if not copies or not all(torch.equal(copy, copies[0]) for copy in copies):
        raise UserError(f"{folder}: must have one table of embeddings, under {', '.join(names)}.")
    return copies[0]
