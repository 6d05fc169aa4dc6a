"""Checkpoints of models that summarise -> models and their task, without a data folder; or, of
fairseq's own models, with the dictionary and the subwords of theirs."""

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch

from fairseq_mm.data.binarised_text import load_dictionary
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.data.transcript_text import SOURCE
from fairseq_mm.errors import UserError
from fairseq_mm.inference import checkpoints
from fairseq_mm.inference.text_models import Paths, load_states, right_command, summarizes_videos
from fairseq_mm.models._provenance import STATE_KEY, words_of


class SummaryModels(NamedTuple):
    """One model, or several that make an ensemble.

    Attributes:
        task: made by ``from_provenance``; it knows whether the models read videos.
        models: in evaluation mode, on their device.
        provenance: what they were trained on.
        files: their checkpoints.
        architectures: their ``--arch``.
        device: where they are.
    """

    task: Any
    models: list[Any]
    provenance: dict[str, Any]
    files: list[str]
    architectures: list[str]
    device: torch.device


def load_summary_models(
    path: Paths,
    *,
    data: Optional[str] = None,
    device: Optional[str] = None,
    states: Optional[Mapping[str, dict[str, Any]]] = None,
) -> SummaryModels:
    """
    Args:
        path: checkpoint, or folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``;
            several as a list or joined by the system's path separator.
        data: data folder of models that carry no dictionary, which are fairseq's own.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU where there is one.
        states: the checkpoints, if :func:`.load_states` has read them
            already.

    Raises:
        UserError: if a checkpoint cannot be loaded, summarises no videos, carries no dictionary
            where no folder is given, or two do not fit together.
    """
    place = checkpoints.usable_device(device)
    states = load_states(path) if states is None else states
    files = list(states)
    first = files[0]
    provenances = []
    for file, state in states.items():
        if not summarizes_videos(state):
            name, command = state["cfg"]["task"]["_name"], right_command(state)
            hint = f": fairseq-mm {command}" if command else ""
            raise UserError(
                f"{file}: was trained with --task {name}, and writes no summaries{hint}."
            )
        provenances.append(_provenance_of(state, file, data))
        checkpoints.check_ensemble(first, provenances[0], file, provenances[-1])
        ends = [(x.get("task_state") or {}).get("source_ends") for x in (states[first], state)]
        if ends[0] != ends[1]:
            raise UserError(
                f"{file}: was trained with --source-ends {ends[1]}, but {first} with {ends[0]}."
            )
    task = checkpoints.build_task(states[first], first, provenances[0], reads="videos")
    models = []
    for file, state in states.items():
        is_own = STATE_KEY not in state["model"]
        model = checkpoints.build_model(task, _as_fairseq_saved(state) if is_own else state, file)
        models.append(model.to(place))
    architectures = [str(state["cfg"].model._name) for state in states.values()]
    return SummaryModels(task, models, provenances[0], files, architectures, place)


def _provenance_of(state: Mapping[str, Any], file: str, data: Optional[str]) -> dict[str, Any]:
    if STATE_KEY in state["model"]:
        return checkpoints.provenance_of(state, file)
    if data is None:
        raise UserError(
            f"{file}: carries no dictionary (--arch {state['cfg'].model._name}, one of fairseq's "
            "own models): give the data folder that it was trained on (--data DIR; in Python "
            "data=...)."
        )
    words = words_of(load_dictionary(os.path.join(data, f"dict.{SOURCE}.txt")))
    subwords = Subwords.load(Path(data))
    return {
        "words": words,
        "source_words": words,
        "subwords": {**subwords.to_state(), "fingerprint": subwords.fingerprint},
        "extractor": {},
        "feature_dim": 0,
    }


def _as_fairseq_saved(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint of fairseq's own models with their options as a plain namespace: BART asks for
    some that a configuration would lose. Files of embeddings are not read again, as the checkpoint
    carries what has become of them."""
    options = dict(state["cfg"].model)
    for name in ("encoder_embed_path", "decoder_embed_path"):
        if options.get(name):
            options[name] = None
    return {**state, "cfg": Namespace(model=Namespace(**options))}
