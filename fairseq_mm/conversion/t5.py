"""Hugging Face's T5, of version 1.0 or 1.1, FLAN-T5 and mT5 -> a checkpoint of ``--arch t5``.

The output folder has the checkpoint (``model.pt``), the dictionary (``dict.txt``, of both sides)
and how text becomes tokens (``subwords.json``, ``sentencepiece.model``); the checkpoint carries the
latter two. ``t5_vocabulary.py`` says which row is which entry, ``t5_back.py`` is the way
back.
"""

import os
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fairseq_mm.conversion.huggingface_folder import read_config, read_weights
from fairseq_mm.conversion.new_checkpoint import checkpoint_state
from fairseq_mm.conversion.output_folder import check_output_folder, output_folder
from fairseq_mm.conversion.t5_layout import (
    EMBEDDINGS,
    FEED_FORWARD,
    OUTPUT,
    RATES,
    SIZES,
    THEIR_EMBEDDINGS,
    THEIR_OUTPUT,
    UNUSED,
    weight_names,
)
from fairseq_mm.conversion.t5_vocabulary import END, PAD, t5_dictionary, to_fairseq_rows
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.errors import UserError
from fairseq_mm.models._provenance import symbols_of
from fairseq_mm.models.t5 import BASE, LARGE, SMALL, T5Config, T5Model
from fairseq_mm.tasks.video_summarization import VideoSummarizationTask

PIECES_FILE = "spiece.model"
_MODEL_TYPES = ("t5", "mt5")
_LISTED = 2  # of the tensors that a message is about


@dataclass
class ConvertedT5:
    """Result of a conversion from Hugging Face's T5.

    Attributes:
        folder: Folder that was written.
        arch: ``--arch`` of its checkpoint.
        options: Options of the model that differ from the defaults of ``arch``.
        parameters: Number of weights.
        words: Dictionary with special symbols.
        notes: Decisions of the conversion, one sentence each.
    """

    folder: str
    arch: str
    options: dict[str, Any]
    parameters: int
    words: int
    notes: list[str] = field(default_factory=list)


def convert_t5(folder: str, output: str, *, overwrite: bool = False) -> ConvertedT5:
    """Convert Hugging Face's T5.

    Args:
        folder: Folder of Hugging Face's T5: ``config.json``, ``model.safetensors`` or
            ``pytorch_model.bin``, and ``spiece.model``.
        output: Folder to write: ``model.pt``, ``dict.txt``, ``sentencepiece.model``,
            ``subwords.json``.
        overwrite: True to replace files of an existing folder.

    Raises:
        UserError: if ``--arch t5`` cannot compute the model, a file is missing or damaged, or the
            output cannot be written.
    """
    check_output_folder(output, overwrite=overwrite, reads=folder)
    config = read_config(folder)
    path = os.path.join(folder, "config.json")
    if config["model_type"] not in _MODEL_TYPES:
        raise UserError(f"{path}: `model_type` must be t5, but is {config['model_type']}.")
    options = _options(config, path)
    notes: list[str] = []
    weights = read_weights(folder)
    embedding = _shared_embedding(weights, folder)
    own_output = _own_output(config, weights, embedding, notes)
    options["untied_output"] = own_output is not None
    pieces_path = os.path.join(folder, PIECES_FILE)
    subwords = Subwords.from_paths("sentencepiece", {"sentencepiece.model": pieces_path})
    content = subwords.files["sentencepiece.model"]
    dictionary = t5_dictionary(content, len(embedding), pieces_path, notes)
    task = VideoSummarizationTask.from_provenance(
        symbols_of(dictionary), {}, 0, subwords=subwords.to_state()
    )
    defaults = {
        name: entry.default
        for name, entry in T5Config.__dataclass_fields__.items()
        if not name.startswith("_")
    }
    try:
        model = T5Model.build_model(Namespace(**{**defaults, **options}), task)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    found = _rename(weights, options, folder)
    found.update(dict.fromkeys(EMBEDDINGS, to_fairseq_rows(embedding)))
    if own_output is not None:
        found[OUTPUT] = to_fairseq_rows(own_output)
    state_dict = model.state_dict()
    _check_shapes(found, state_dict, options, folder)
    arch, sizes = _architecture(options)
    changed = {name: x for name, x in options.items() if x != {**defaults, **sizes}[name]}
    flags = [".", "--task", "video_summarization", "--arch", arch]
    for name, value in changed.items():
        flags += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    state = checkpoint_state(flags, {**state_dict, **found})
    state["task_state"] = task.state_dict()
    with output_folder(output) as partial:
        subwords.save(partial)
        dictionary.save(os.path.join(partial, "dict.txt"))
        torch.save(state, os.path.join(partial, "model.pt"))
    parameters = sum(x.numel() for x in model.parameters())
    return ConvertedT5(output, arch, changed, parameters, len(dictionary), notes)


def _options(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the options of ``--arch t5``; missing options have Hugging Face's defaults."""
    options: dict[str, Any] = {}
    for names, kinds in ((SIZES, (int,)), (RATES, (int, float))):
        for name, (key, default) in names.items():
            value = config.get(key)
            if value is None:
                value = options["encoder_layers"] if default is None else default
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise UserError(f"{path}: `{key}` must be a number, but is {value!r:.60}.")
            options[name] = value if names is SIZES else float(value)
    activations = {theirs: ours for ours, theirs in FEED_FORWARD.items()}
    kind = config.get("feed_forward_proj", "relu")
    if kind not in activations:
        names = " or ".join(activations)
        raise UserError(f"{path}: `feed_forward_proj` must be {names}, but is {kind!r:.60}.")
    options["feed_forward"] = activations[kind]
    for key, row in (("pad_token_id", PAD), ("eos_token_id", END), ("decoder_start_token_id", PAD)):
        value = config.get(key)
        if value is not None and value != row:
            raise UserError(f"{path}: `{key}` must be {row}, but is {value!r:.60}.")
    return options


def _architecture(options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the ``--arch`` of these sizes, and the values that it sets."""
    for arch, sizes in (("t5_small", SMALL), ("t5_base", BASE), ("t5_large", LARGE)):
        if all(options[name] == size for name, size in sizes.items()):
            return arch, sizes
    return "t5", {}


def _shared_embedding(weights: dict[str, Tensor], folder: str) -> Tensor:
    """Remove the embedding and its copies from ``weights``, and return it, ``[V, D]``."""
    copies = [weights.pop(name).float() for name in THEIR_EMBEDDINGS if name in weights]
    if not copies:
        raise UserError(f"{folder}: has no tensor {THEIR_EMBEDDINGS[0]}.")
    if copies[0].dim() != 2:
        shape = tuple(copies[0].shape)
        raise UserError(f"{folder}: {THEIR_EMBEDDINGS[0]} must be a matrix, but is of {shape}.")
    if not all(torch.equal(copy, copies[0]) for copy in copies):
        raise UserError(f"{folder}: encoder and decoder have different embeddings; t5 shares one.")
    return copies[0]


def _own_output(
    config: Mapping[str, Any], weights: dict[str, Tensor], embedding: Tensor, notes: list[str]
) -> Any:
    """Remove the output layer [V, D] from ``weights`` and return it; None if it is the embedding.

    ``--arch t5`` scales the input of a shared output layer, and only of a shared one. In
    transformers, sharing and scaling are two settings. With any other combination the output gets
    its own weights, which include the scale.
    """
    is_scaled = config.get("scale_decoder_outputs")
    if is_scaled is None:
        is_scaled = config.get("tie_word_embeddings") is not False
    output = weights.pop(THEIR_OUTPUT, embedding).float()
    is_shared = output.shape == embedding.shape and torch.equal(output, embedding)
    if is_shared and is_scaled:
        return None
    if is_scaled:
        notes.append("The output layer is scaled, but not shared: the scale is in its weights now.")
        return output * embedding.size(1) ** -0.5
    if is_shared:
        notes.append("The output layer is shared, but not scaled: it has a copy of the embedding.")
    return output


def _rename(
    weights: Mapping[str, Tensor], options: Mapping[str, Any], folder: str
) -> dict[str, Tensor]:
    names = {theirs: ours for ours, theirs in weight_names(options)}
    missing = [name for name in names if name not in weights]
    if missing:
        raise UserError(f"{folder}: lacks {_listed(missing)}, which its config.json asks for.")
    unexpected = [name for name in weights if name not in names and name != UNUSED]
    if unexpected:
        raise UserError(f"{folder}: has {_listed(unexpected)}, for which t5 has no place.")
    return {ours: weights[theirs].float() for theirs, ours in names.items()}


def _check_shapes(
    found: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    options: Mapping[str, Any],
    folder: str,
) -> None:
    their_names = dict(weight_names(options))
    their_names.update(dict.fromkeys(EMBEDDINGS, THEIR_EMBEDDINGS[0]), **{OUTPUT: THEIR_OUTPUT})
    for name, x in found.items():
        if x.shape != expected[name].shape:
            raise UserError(
                f"{folder}: {their_names[name]} is of {tuple(x.shape)}, but by its config.json "
                f"must be of {tuple(expected[name].shape)}."
            )
        if not torch.isfinite(x).all():
            raise UserError(f"{folder}: {their_names[name]} has numbers that are not finite.")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more tensors" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
