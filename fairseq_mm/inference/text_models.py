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
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import open_dict

from fairseq_mm.data.binarised_text import dictionary_of
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED
from fairseq_mm.inference import checkpoints
from fairseq_mm.tasks.hierarchical_story import HierarchicalStoryConfig, HierarchicalStoryTask

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

    def generation_task(self) -> HierarchicalStoryTask:
        """The task whose generators write the texts, of prompts and of language models as well."""
        return HierarchicalStoryTask(
            HierarchicalStoryConfig(seed=SEED),
            self.source_dictionary or self.dictionary,
            self.dictionary,
        )


def load_states(path: Paths) -> dict[str, dict[str, Any]]:
    """Checkpoint files -> their content, on the CPU.

    Args:
        path: see :func:`load_text_models`.

    Raises:
        UserError: if a checkpoint cannot be loaded.
    """
    names = os.fspath(path).split(os.pathsep) if isinstance(path, (str, os.PathLike)) else path
    files = [checkpoints.checkpoint_file(os.fspath(name)) for name in names]
    if not files:
        raise UserError("`path` must name at least one checkpoint, but is empty.")
    return {file: checkpoints.load_checkpoint(file) for file in files}


def describes_images(state: dict[str, Any]) -> bool:
    """Whether a checkpoint was trained under a task whose models read images."""
    return checkpoints.input_kind(state) == "images"


def summarizes_videos(state: dict[str, Any]) -> bool:
    """Whether a checkpoint was trained to summarise videos, or their transcripts alone."""
    return checkpoints.input_kind(state) == "videos"


def tells_visual_stories(state: dict[str, Any]) -> bool:
    """Whether a checkpoint was trained to tell a story of five images."""
    return state["cfg"]["task"]["_name"] == "visual_storytelling"


def embeds_sentences(state: dict[str, Any]) -> bool:
    """Whether a checkpoint's model puts images and sentences into one space, and writes none."""
    name = state["cfg"]["model"]["_name"]
    return hasattr(ARCH_MODEL_REGISTRY.get(name), "embed_sentences")


def reads_structures(state: dict[str, Any]) -> bool:
    """Whether a checkpoint's model writes sentences by a structure and a content vector."""
    name = state["cfg"]["model"]["_name"]
    return getattr(ARCH_MODEL_REGISTRY.get(name), "reads_structure", False)


def right_command(state: dict[str, Any]) -> str:
    """The subcommand of ``fairseq-mm`` that a checkpoint is for; empty where none is."""
    names = {
        "video_summarization": "summarize",
        "visual_storytelling": "tell",
        "multimodal_captioning": "caption",
    }
    if embeds_sentences(state):
        return "rank"
    task = state["cfg"]["task"]["_name"]
    writes_text = task in ("hierarchical_story", "translation", "language_modeling")
    return names.get(task, "tell" if writes_text else "")


def load_text_models(
    path: Paths, *, device: Optional[str] = None, states: Optional[dict[str, dict[str, Any]]] = None
) -> TextModels:
    """
    Args:
        path: a checkpoint or a folder with ``checkpoint_best.pt`` or ``checkpoint_last.pt``;
            several, as a list or separated by the system's path separator, are an ensemble.
        device: such as ``cpu`` or ``cuda:1``; a GPU by default if there is one.
        states: the checkpoints, if :func:`load_states` has read them already.

    Raises:
        UserError: if a checkpoint cannot be loaded, describes images or videos, or two do not
            fit together.
    """
    place = checkpoints.usable_device(device)
    states = load_states(path) if states is None else states
    provenances = []
    for file, state in states.items():
        if summarizes_videos(state):
            raise UserError(
                f"{file}: summarises videos (--arch {state['cfg'].model._name}), and tells no "
                "stories: fairseq-mm summarize."
            )
        provenance = checkpoints.provenance_of(state, file)
        provenances.append(provenance)
        if provenance["feature_dim"]:
            does, command = "describes images", "caption"
            if tells_visual_stories(state):
                does, command = "tells stories of five images", "tell"
            raise UserError(
                f"{file}: {does} (--arch {state['cfg'].model._name}), and reads no text: "
                f"fairseq-mm {command} IMAGE ..."
            )
        if getattr(state["cfg"].task, "add_bos_token", False):
            raise UserError(
                f"{file}: was trained with --add-bos-token, so that texts begin with two signs; "
                "train it without."
            )
        checkpoints.check_ensemble(next(iter(states)), provenances[0], file, provenance)
    dictionary = dictionary_of(provenances[0]["words"])
    source_words = provenances[0].get("source_words")
    source_dictionary = None if source_words is None else dictionary_of(source_words)
    task = _BuildingTask(dictionary, source_dictionary)
    models = [
        checkpoints.build_model(task, _without_paths(state), file).to(place)
        for file, state in states.items()
    ]
    return TextModels(
        models,
        list(states),
        [str(state["cfg"].model._name) for state in states.values()],
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
