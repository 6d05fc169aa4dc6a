"""What a checkpoint was trained for, by one call."""

import os
from typing import Any, Optional, Union

from fairseq_mm.errors import UserError
from fairseq_mm.inference.caption_processor import check_caption_states
from fairseq_mm.inference.embedder import Embedder
from fairseq_mm.inference.generator import Generator
from fairseq_mm.inference.loading import (
    Paths,
    States,
    embeds_sentences,
    load_models,
    load_states,
    reads_structures,
)
from fairseq_mm.inference.prompt_models import check_prompt_models, load_prompt_generator
from fairseq_mm.inference.structured_captioner import StructuredCaptioner
from fairseq_mm.inference.structured_loading import load_structured_captioner

Path = Union[str, os.PathLike]


def from_pretrained(
    path: Paths,
    *,
    weights: Optional[Path] = None,
    prompt_model: Optional[Paths] = None,
    embedding: Optional[Path] = None,
    data: Optional[Path] = None,
    device: Optional[str] = None,
    states: Optional[States] = None,
) -> Union[Generator, Embedder, StructuredCaptioner]:
    """See :func:`fairseq_mm.from_pretrained`.

    Args:
        path: checkpoint, or folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``;
            several as a list or joined by the system's path separator are an ensemble.
        weights: state dict file of the extractor of images or videos.
        prompt_model: language model, as ``path``, that generates prompts.
        embedding: checkpoint of the embedding model on whose vectors ``path`` was trained.
        data: data folder, see :func:`fairseq_mm.from_pretrained`.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU where there is one.
        states: the checkpoints, if :func:`.load_states` has read them already.

    Raises:
        UserError: if a checkpoint cannot be loaded, two do not fit together, or an argument is of
            another kind of model.
    """
    states = load_states(path) if states is None else states
    first = next(iter(states.values()))
    weights = None if weights is None else os.fspath(weights)
    if embeds_sentences(first):
        _refuse("an embedding model", prompt_model=prompt_model, embedding=embedding, data=data)
        if len(states) > 1:
            raise UserError("an embedding model must be one checkpoint, but `path` is several.")
        return Embedder(load_models(path, device=device, states=states), weights=weights)
    if reads_structures(first) and embedding is not None and data is not None:
        _refuse("a captioning model", prompt_model=prompt_model)
        return load_structured_captioner(
            path, embedding=embedding, data=data, weights=weights, device=device, states=states
        )
    check_caption_states(states)
    loaded = load_models(path, data=data, device=device, states=states)
    reads = loaded.task.input_kind
    if data is not None and loaded.provenance["extractor"]:
        _refuse("a model that carries its vocabulary", data=data)
    prompt_generator = None
    if prompt_model is not None:
        if reads != "prompts":
            _refuse(f"a model that reads {loaded.task.input_names[1]}", prompt_model=prompt_model)
        prompt_generator = load_prompt_generator(prompt_model, device=device)
        check_prompt_models(prompt_generator.loaded, loaded)
    return Generator(
        loaded, prompt_generator=prompt_generator, weights=weights, embedding=embedding
    )


def _refuse(kind: str, **given: Any) -> None:
    """
    Raises:
        UserError: if one of these arguments is given.
    """
    for name, value in given.items():
        if value is not None:
            raise UserError(f"`{name}` is no option of {kind}, which `path` is.")
