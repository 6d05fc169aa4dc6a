"""Checkpoints -> models and their task, without the data folder that they were trained on.

A checkpoint carries its dictionaries, its subwords and the identity of its extractor, so that it
can be loaded by itself, from wherever it lies. fairseq's own models that summarise transcripts
carry none of these: ``data`` names the folder that they were trained on.
"""

import os
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from omegaconf import open_dict

from fairseq_mm.compat import float32_by_default
from fairseq_mm.compat.loading import named_failures
from fairseq_mm.data.binarised_text import load_dictionary
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.data.transcript_text import SOURCE
from fairseq_mm.errors import UserError
from fairseq_mm.inference import checkpoints
from fairseq_mm.inference.checkpoint_files import Paths, checkpoint_files
from fairseq_mm.models._provenance import STATE_KEY, symbols_of
from fairseq_mm.tasks.hierarchical_story import HierarchicalStoryTask

States = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class LoadedModels:
    """One model, or several that make an ensemble.

    Args:
        task: that generates with them.
        models: in evaluation mode, on their device, not yet prepared for inference.
        files: their checkpoints.
        architectures: their ``--arch``.
        provenance: what they were trained on, see
            :func:`fairseq_mm.models._provenance.decode_provenance`.
        device: where they are.
    """

    task: Any
    models: list[Any]
    files: list[str]
    architectures: list[str]
    provenance: dict[str, Any]
    device: torch.device

    @property
    def dictionary(self) -> Dictionary:
        """Of the text that they generate."""
        return self.task.target_dictionary

    @property
    def source_dictionary(self) -> Optional[Dictionary]:
        """Of the text that they read; None of language models and where only images are read."""
        return None if self.are_language_models else self.task.source_dictionary

    @property
    def are_language_models(self) -> bool:
        return isinstance(self.task, HierarchicalStoryTask) and not self.task.reads_prompts


def load_states(path: Paths) -> States:
    """Checkpoint files -> their content, on the CPU.

    Args:
        path: checkpoint, or folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``;
            several as a list or joined by the system's path separator.

    Raises:
        UserError: if a checkpoint cannot be loaded.
    """
    return {file: checkpoints.load_checkpoint(file) for file in checkpoint_files(path)}


def task_class_of(state: Mapping[str, Any]) -> Any:
    """The task that generates with a checkpoint: the one that it was trained under, or that of
    prompts for what fairseq's ``translation`` and ``language_modeling`` trained."""
    task = TASK_REGISTRY.get(state["cfg"]["task"]["_name"])
    return task if hasattr(task, "from_provenance") else HierarchicalStoryTask


def embeds_sentences(state: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's model embeds images and sentences, and generates no text."""
    return hasattr(ARCH_MODEL_REGISTRY.get(state["cfg"]["model"]["_name"]), "embed_sentences")


def reads_structures(state: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's model generates by a part-of-speech sequence and a content vector."""
    name = state["cfg"]["model"]["_name"]
    return getattr(ARCH_MODEL_REGISTRY.get(name), "reads_structure", False)


def command_of(state: Mapping[str, Any]) -> str:
    """The subcommand of ``fairseq-mm`` that a checkpoint is for; empty where none is."""
    if embeds_sentences(state):
        return "rank"
    name = state["cfg"]["task"]["_name"]
    known = name in ("translation", "language_modeling") or hasattr(
        TASK_REGISTRY.get(name), "from_provenance"
    )
    return task_class_of(state).command if known else ""


def check_command(command: str, states: States) -> None:
    """
    Raises:
        UserError: if a checkpoint is for another subcommand of ``fairseq-mm``, naming it.
    """
    for file, state in states.items():
        other = command_of(state)
        if other != command:
            cfg = state["cfg"]
            of = f"fairseq-mm {other}" if other else "no subcommand of fairseq-mm"
            arch, task = cfg["model"]["_name"], cfg["task"]["_name"]
            raise UserError(
                f"{file}: --arch {arch} (--task {task}) is a model of {of}, not of fairseq-mm "
                f"{command}."
            )


@float32_by_default()
def load_models(
    path: Paths,
    *,
    data: Optional[Union[str, os.PathLike]] = None,
    device: Optional[str] = None,
    states: Optional[States] = None,
) -> LoadedModels:
    """One checkpoint, or an ensemble of several, whose probabilities are averaged.

    Args:
        path: see :func:`load_states`.
        data: data folder of models that carry no dictionary, which are fairseq's own.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU where there is one.
        states: the checkpoints, if :func:`load_states` has read them already.

    Raises:
        UserError: if a checkpoint cannot be loaded, carries no dictionary where no folder is
            given, or two do not fit together.
    """
    place = checkpoints.usable_device(device)
    states = load_states(path) if states is None else states
    first, *others = states
    kind = task_class_of(states[first])
    provenances = {file: _provenance_of(state, file, kind, data) for file, state in states.items()}
    for file in others:
        if task_class_of(states[file]) is not kind:
            raise UserError(
                f"{file}: was trained with --task {states[file]['cfg']['task']['_name']}, but "
                f"{first} with {states[first]['cfg']['task']['_name']}: they are no ensemble."
            )
        checkpoints.check_ensemble(first, provenances[first], file, provenances[file])
        kind.check_ensemble_states(first, states[first], file, states[file])
    if kind is HierarchicalStoryTask and provenances[first]["feature_dim"]:
        raise UserError(
            f"{first}: --arch {states[first]['cfg'].model._name} reads images or videos, but was "
            f"trained with --task {states[first]['cfg']['task']['_name']}, which reads none."
        )
    task = _task_of(kind, states[first], first, provenances[first])
    builder = task if kind is not HierarchicalStoryTask else _TextModelBuilder(task)
    models = []
    for file, state in states.items():
        models.append(checkpoints.build_model(builder, without_files(state), file).to(place))
    architectures = [str(state["cfg"].model._name) for state in states.values()]
    return LoadedModels(task, models, list(states), architectures, provenances[first], place)


def _provenance_of(
    state: Mapping[str, Any], file: str, kind: Any, data: Optional[Union[str, os.PathLike]]
) -> dict[str, Any]:
    if STATE_KEY in state["model"]:
        return checkpoints.provenance_of(state, file)
    if data is None:
        if kind.input_kind == "videos":
            raise UserError(
                f"{file}: carries no dictionary (--arch {state['cfg'].model._name}, one of "
                "fairseq's own models): give the data folder that it was trained on (--data DIR; "
                "in Python data=...)."
            )
        return checkpoints.provenance_of(state, file)
    if kind.input_kind == "prompts":
        return _provenance_of_folder(state, data)
    words = symbols_of(load_dictionary(os.path.join(data, f"dict.{SOURCE}.txt")))
    subwords = Subwords.load(Path(data))
    return {
        "words": words,
        "source_words": words,
        "subwords": {**subwords.to_state(), "fingerprint": subwords.fingerprint},
        "extractor": {},
        "feature_dim": 0,
    }


def _provenance_of_folder(
    state: Mapping[str, Any], data: Union[str, os.PathLike]
) -> dict[str, Any]:
    """The vocabularies of a folder that fairseq's ``translation`` or ``language_modeling`` trained
    on."""
    sides = [getattr(state["cfg"].task, f"{side}_lang", None) for side in ("target", "source")]
    names = [f"dict.{side}.txt" for side in sides] if all(sides) else ["dict.txt"]
    words, *others = [symbols_of(load_dictionary(os.path.join(data, name))) for name in names]
    source = others[0] if others else None
    return {"words": words, "source_words": source, "extractor": {}, "feature_dim": 0}


def _task_of(kind: Any, state: Mapping[str, Any], file: str, provenance: Mapping[str, Any]) -> Any:
    # what some models carry and others do not
    others = {name: provenance[name] for name in kind.provenance_fields if name in provenance}
    if getattr(state["cfg"].task, "add_bos_token", False):
        raise UserError(
            f"{file}: was trained with --add-bos-token, so that texts begin with two symbols; "
            "train it without."
        )
    try:
        with named_failures(file):
            task = kind.from_provenance(
                provenance["words"], provenance["extractor"], provenance["feature_dim"], **others
            )
            task.load_state_dict(state.get("task_state") or {})
            return task
    except UserError as error:
        raise checkpoints.naming(file, error) from None


class _TextModelBuilder:
    """What ``build_model`` of story models and language models asks of a task: dictionaries."""

    def __init__(self, task: HierarchicalStoryTask) -> None:
        self.target_dictionary = self.dictionary = task.target_dictionary
        self.source_dictionary = task.source_dictionary
        self.cfg = Namespace(data=None)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        return ARCH_MODEL_REGISTRY[cfg._name].build_model(cfg, self)


def without_files(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint whose model is built without the files that its training began with: it carries
    what has become of them."""
    cfg = state["cfg"].model
    if getattr(cfg, "pretrained_checkpoint", None):
        with open_dict(cfg):
            cfg.pretrained_checkpoint = f"{cfg.pretrained_checkpoint} (carried)"
    if STATE_KEY in state["model"]:
        return state
    # BART asks for options that a configuration would lose
    options = dict(cfg)
    for name in ("encoder_embed_path", "decoder_embed_path"):
        if options.get(name):
            options[name] = None
    return {**state, "cfg": Namespace(model=Namespace(**options))}
