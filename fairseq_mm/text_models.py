"""Checkpoints of models that read and write text -> models and dictionaries, without a data folder.

A story model or a language model carries its dictionaries, so that any of them can be loaded by
itself, from wherever it lies, whichever task it was trained under.
"""

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch
from fairseq.data import Dictionary
from omegaconf import open_dict

from fairseq_mm import checkpoints
from fairseq_mm.errors import UserError

Paths = Union[str, os.PathLike, Sequence[Union[str, os.PathLike]]]


@dataclass(frozen=True)
class TextModels:
    """One model, or several that make an ensemble.

    Args:
        models: in evaluation mode, on their device, not yet prepared for inference.
        files: their checkpoints.
        architectures: their ``--arch``.
        dictionary: of the text that they write.
        source_dictionary: of the text that they read; None of language models.
        device: where they are.
    """

    models: list[Any]
    files: list[str]
    architectures: list[str]
    dictionary: Dictionary
    source_dictionary: Optional[Dictionary]
    device: torch.device

    @property
    def are_language_models(self) -> bool:
        return self.source_dictionary is None


def load_text_models(path: Paths, *, device: Optional[str] = None) -> TextModels:
    """
    Args:
        path: a checkpoint or a folder with ``checkpoint_best.pt`` or ``checkpoint_last.pt``;
            several, as a list or separated by the system's path separator, are an ensemble.
        device: such as ``cpu`` or ``cuda:1``; a GPU by default if there is one.

    Raises:
        UserError: if a checkpoint cannot be loaded, writes captions of pictures, or two do not
            fit together.
    """
    names = os.fspath(path).split(os.pathsep) if isinstance(path, (str, os.PathLike)) else path
    files = [checkpoints.checkpoint_file(os.fspath(name)) for name in names]
    if not files:
        raise UserError("`path` must name at least one checkpoint, but is empty.")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {place}: {str(error).splitlines()[0]}") from None
    states = [checkpoints.load_checkpoint(file) for file in files]
    provenances = [checkpoints.provenance_of(state, file) for state, file in zip(states, files)]
    for file, provenance in zip(files, provenances):
        checkpoints.check_ensemble(files[0], provenances[0], file, provenance)
        if provenance["feature_dim"]:
            raise UserError(f"{file}: describes pictures (--arch {states[0]['cfg'].model._name}).")
    dictionary = _dictionary(provenances[0]["words"])
    source_words = provenances[0].get("source_words")
    source_dictionary = None if source_words is None else _dictionary(source_words)
    task = _BuildingTask(dictionary, source_dictionary)
    models = [
        checkpoints.build_model(task, _without_paths(state), file).to(place)
        for state, file in zip(states, files)
    ]
    return TextModels(
        models,
        files,
        [str(state["cfg"].model._name) for state in states],
        dictionary,
        source_dictionary,
        place,
    )


class _BuildingTask:
    """What ``build_model`` asks of a task: its dictionaries."""

    def __init__(self, dictionary: Dictionary, source_dictionary: Optional[Dictionary]) -> None:
        self.target_dictionary = self.dictionary = dictionary
        self.source_dictionary = source_dictionary or dictionary
        self.cfg = Namespace(data=None)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        from fairseq.models import ARCH_MODEL_REGISTRY

        return ARCH_MODEL_REGISTRY[cfg._name].build_model(cfg, self)


def _without_paths(state: dict[str, Any]) -> dict[str, Any]:
    """The pretrained model's file is not looked for: the checkpoint carries the model."""
    cfg = state["cfg"].model
    if getattr(cfg, "pretrained_checkpoint", None):
        with open_dict(cfg):
            cfg.pretrained_checkpoint = f"{cfg.pretrained_checkpoint} (carried)"
    return state


def _dictionary(words: list[str]) -> Dictionary:
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word, overwrite=True)  # a word of the list is always a new index
    return dictionary
