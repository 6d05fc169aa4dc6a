"""Builds generators, embedders and captioners from checkpoints."""

import os
from collections.abc import Sequence
from typing import Any, Optional, Union

from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import (
    Checkpoint,
    LoadedModels,
    build_models,
    load_models,
    named_failures,
)
from fairseq_mm.inference.checkpoint_files import Path, Paths
from fairseq_mm.inference.embedder import Embedder, build_embedder, load_embedder
from fairseq_mm.inference.generator import Generator
from fairseq_mm.inference.structured_captioner import StructuredCaptioner, load_structured_captioner
from fairseq_mm.models._provenance import list_words


def from_checkpoints(
    checkpoints: Sequence[Checkpoint],
    *,
    weights: Optional[Path] = None,
    prompt_model: Optional[Paths] = None,
    embedding: Any = None,
    data: Any = None,
    device: Optional[str] = None,
    kind: Optional[str] = None,
    **structured: Any,
) -> Union[Generator, Embedder, StructuredCaptioner]:
    """Build a generator, an embedder or a structured captioner, depending on the checkpoints.

    See :func:`fairseq_mm.from_pretrained`, which opens checkpoints by path.

    Args:
        prompt_model: Path of the checkpoint of a language model that generates prompts; several
            paths are an ensemble.
        embedding: Path of an embedding model's checkpoint, for models trained on its vectors.
        data: Folder of the training data, for models whose checkpoint has no dictionary, and for
            models that read part-of-speech sequences. The checkpoints must have been opened with
            the same folder.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU if there is one.
        kind: Kind that the result must have: ``generator``, ``embedder`` or ``captioner``; None for
            any kind.
        **structured: Further arguments of :func:`.load_structured_captioner`.
    """
    first = checkpoints[0]
    has_structures = first.reads_structure and embedding is not None and data is not None
    built = "embedder" if first.is_embedding else "captioner" if has_structures else "generator"
    if kind not in (None, built):
        raise UserError(f"{first.path}: `kind` must be {built!r}, but is {kind!r} instead.")
    weights = None if weights is None else os.fspath(weights)
    if first.is_embedding:
        _refuse(first, prompt_model=prompt_model, embedding=embedding, data=data)
        return build_embedder(checkpoints, weights=weights, device=device)
    if has_structures:
        return load_structured_captioner(
            checkpoints,
            embedding=embedding,
            data=data,
            weights=weights,
            device=device,
            **structured,
        )
    if first.reads_structure:
        raise UserError(
            f"{first.path}: generates by part-of-speech sequences of training and vectors of an "
            "embedding model: fairseq-mm caption --embedding PATH --data DATA; in Python "
            "from_pretrained(..., embedding=..., data=...)."
        )
    loaded = build_models(checkpoints, device)
    if loaded.extractor:
        _refuse(
            first,
            "; its checkpoint has the dictionaries. A split is an input: DATA --split NAME",
            data=data,
        )
    prompt_generator = None
    if prompt_model is not None:
        if loaded.source_dictionary is None or loaded.feature_dim:
            _refuse(first, prompt_model=prompt_model)
        prompt_generator = load_prompt_generator(prompt_model, device=device)
        _check_prompt_models(prompt_generator.loaded, loaded)
    # limits of texts come from the options of the checkpoint, too
    with named_failures(first.path, "no generator can be made of this checkpoint"):
        if embedding is not None:
            embedding = load_embedder(embedding, weights=weights, device=str(loaded.device))
        return Generator(
            loaded, prompt_generator=prompt_generator, weights=weights, embedding=embedding
        )


def _refuse(checkpoint: Checkpoint, hint: str = "", **arguments: Any) -> None:
    """Raise UserError if any of the keyword arguments, which the model does not use, is set."""
    for name, value in arguments.items():
        if value is not None:
            raise UserError(
                f"`{name}` is no option of {checkpoint.path} (--arch {checkpoint.arch}){hint}."
            )


def load_prompt_generator(path: Paths, *, device: Optional[str] = None) -> Generator:
    """Load a language model that generates prompts."""
    loaded = load_models(path, device=device)
    if not loaded.are_language_models:
        raise UserError(
            f"{loaded.files[0]}: --arch {loaded.architectures[0]} reads an input, but a prompt "
            "model must be a language model (such as --arch gcnn_lm_self_att)."
        )
    return Generator(loaded)


def _check_prompt_models(prompt_models: LoadedModels, models: LoadedModels) -> None:
    """Raise UserError if ``models`` cannot read the prompts that ``prompt_models`` generate.

    The vocabulary of the prompt models must equal the source vocabulary of the story models.
    """
    assert models.source_dictionary is not None
    generated, read = list_words(prompt_models.dictionary), list_words(models.source_dictionary)
    if generated != read:
        raise UserError(
            f"{prompt_models.files[0]}: has another vocabulary ({len(generated)} words) than the "
            f"prompts of {models.files[0]} ({len(read)} words): train the prompt model on prompts "
            "that were binarised with its source dictionary (fairseq-preprocess --srcdict)."
        )
