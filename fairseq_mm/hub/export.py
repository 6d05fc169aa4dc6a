"""Converts checkpoints to model folders (safetensors, JSON and a model card), and back."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_mm import __version__
from fairseq_mm.compat.model_folders import is_model_folder, load_model_folder
from fairseq_mm.conversion.new_checkpoint import checkpoint_of_config
from fairseq_mm.data.binarised_text import load_dictionary
from fairseq_mm.data.input_files import compute_sha256
from fairseq_mm.data.model_folder import (
    WEIGHTS_FILE,
    check_plain,
    is_count,
    shorten_paths,
    write_config,
    write_weights,
)
from fairseq_mm.data.output_file import library_errors, partial_path
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.data.transcript_text import SOURCE, TARGET
from fairseq_mm.errors import UserError
from fairseq_mm.hub.model_card import write_card
from fairseq_mm.inference.checkpoint import Checkpoint, build_models
from fairseq_mm.inference.checkpoint_files import compute_checkpoint_digest
from fairseq_mm.models._provenance import list_words


class ExportedModel(NamedTuple):
    """Result of :func:`export_checkpoint`.

    Attributes:
        files: Names of the files in the folder.
        parameters: Number of weights.
    """

    files: list[str]
    parameters: int


def export_checkpoint(
    checkpoint: Checkpoint, output: str, *, scores: Optional[Mapping[str, Any]] = None
) -> ExportedModel:
    """Write a checkpoint as a model folder: safetensors, JSON, dictionaries and a model card.

    The model is built before anything is written, so that every exported folder can be used. The
    folder appears only when all of its files are complete.

    Args:
        checkpoint: Checkpoint, or another model folder. Checkpoints of fairseq's own models record
            no dictionary and must have been opened with the data folder of the training.
        output: Folder to write; it must not exist, or be empty.
        scores: Result of ``fairseq-mm score --json`` for the model card.
    """
    check_new_folder(output)
    # before the build, which changes the options of pretrained parts
    options = _plain_options(checkpoint)
    build_models([checkpoint], "cpu")
    try:
        with partial_path(os.path.realpath(output)) as partial:
            os.mkdir(partial)
            config = _write_files(checkpoint, options, partial)
            write_card(config, checkpoint, partial, scores=scores)
            files = sorted(os.listdir(partial))
            # replaces an empty folder, and fails if somebody has written to it meanwhile
            os.rename(partial, os.path.realpath(output))
    except OSError as error:
        raise UserError(f"{output}: cannot be written ({error.strerror or error}).") from None
    return ExportedModel(files, config["weights"]["parameters"])


def check_new_folder(path: str) -> None:
    """Check that a folder does not exist or is empty, and that it can be created."""
    check_parent(path)
    if not os.path.lexists(path):
        return
    if not os.path.isdir(path):
        raise UserError(f"{path}: exists already and is no folder; name a new one.")
    if os.listdir(path):
        raise UserError(f"{path}: must be new or empty, but has files.")
    if os.path.samefile(path, os.curdir):
        raise UserError(f"{path}: is the current folder, which cannot be replaced; name a new one.")


def check_parent(path: str) -> None:
    """Raise UserError if the parent folder of ``path`` does not exist."""
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        raise UserError(f"{path}: there is no folder {parent}.")


def _write_files(checkpoint: Checkpoint, options: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Write weights, vocabulary and ``config.json`` to a folder; return the content of this file.

    ``options`` is the result of :func:`_plain_options`.
    """
    weights = write_weights(checkpoint.weights, folder)
    _write_vocabulary(checkpoint, folder)
    names = sorted(set(os.listdir(folder)) - {WEIGHTS_FILE})
    history = (checkpoint.state.get("optimizer_history") or [{}])[-1]
    iterator = (checkpoint.state.get("extra_state") or {}).get("train_iterator") or {}
    config = {
        "fairseq_mm_version": __version__,
        "architecture": checkpoint.arch,
        "task": checkpoint.task_name,
        "plugin": _find_plugin(checkpoint),
        **options,
        "training": {
            name: entries[name] if is_count(entries.get(name)) else None
            for name, entries in (("num_updates", history), ("epoch", iterator))
        },
        "extractor": checkpoint.extractor,
        "feature_dim": checkpoint.feature_dim,
        "weights": weights,
        "files": {name: compute_sha256(os.path.join(folder, name)) for name in names},
        "checkpoint_sha256": compute_checkpoint_digest(checkpoint.path),
    }
    try:
        write_config(config, folder)
    except UserError as error:
        raise UserError(f"{checkpoint.path}: {error}") from None
    return config


def _find_plugin(checkpoint: Checkpoint) -> Optional[str]:
    """Return the name of the package that defines the model or its task.

    If fairseq or this package defines both, the result is None.
    """
    for kind in (
        ARCH_MODEL_REGISTRY.get(checkpoint.arch),
        TASK_REGISTRY.get(checkpoint.task_name),
    ):
        package = "fairseq" if kind is None else kind.__module__.partition(".")[0]
        if package not in ("fairseq", "fairseq_mm"):
            return package
    return None


def _plain_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the options of model and task as plain JSON, without absolute paths.

    Raise UserError with the option's name if an option is not plain JSON.
    """
    plain: dict[str, Any] = {}
    for name in ("model", "task"):
        section = checkpoint.cfg[name]
        try:
            # resolved: options may refer to sections that the folder does not have
            values: Any = OmegaConf.to_container(section, resolve=True, enum_to_str=True)
        except Exception as error:  # omegaconf raises classes of its own
            first_line = str(error).strip().splitlines()[:1]
            raise UserError(
                f"{checkpoint.path}: its options of the {name} cannot be read "
                f"({''.join(first_line)})."
            ) from None
        plain[f"{name}_options"] = {key: x for key, x in values.items() if key != "_name"}
    plain["task_state"] = dict(checkpoint.task_state)
    try:
        for name, options in plain.items():
            check_plain(options, name)
    except UserError as error:
        raise UserError(f"{checkpoint.path}: {error}") from None
    return shorten_paths(plain)


def _write_vocabulary(checkpoint: Checkpoint, folder: str) -> None:
    """Write the dictionaries under the names of the task's data folder, and the subword model.

    Only fairseq's own models are built from these files. The weights of other models contain the
    words; their files are for readers and for ``fairseq-mm prepare --dictionary``.
    """
    provenance = checkpoint.provenance
    words, source_words = provenance["words"], provenance.get("source_words")
    sides = [checkpoint.cfg["task"].get(f"{side}_lang") for side in ("target", "source")]
    dictionaries = {"dict.txt": words}
    if checkpoint.input_kind == "videos":
        # both texts share it, and data folders have it under both names
        dictionaries = {f"dict.{side}.txt": words for side in (SOURCE, TARGET)}
    elif source_words is not None and all(map(_is_language, sides)):
        dictionaries = {f"dict.{sides[0]}.txt": words, f"dict.{sides[1]}.txt": source_words}
    elif source_words is not None:
        kind = "tags" if checkpoint.reads_structure else "source"
        dictionaries[f"dict.{kind}.txt"] = source_words
    for name, content in dictionaries.items():
        _write_dictionary(content, os.path.join(folder, name), checkpoint.path)
    if provenance.get("subwords"):
        Subwords.from_state(provenance["subwords"]).save(folder)


def _write_dictionary(words: Sequence[str], path: str, source: str) -> None:
    """Write a dictionary in fairseq's format; ``source`` is the checkpoint's path, for messages.

    Raise UserError if the file, read again, has other words.
    """
    seen = set(Dictionary().symbols)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for word in words:
            # the format wants counts, which checkpoints lack; only the order matters
            file.write(f"{word} 1{' #fairseq:overwrite' if word in seen else ''}\n")
            seen.add(word)
    try:
        is_same = list_words(load_dictionary(path)) == list(words)
    except UserError:
        is_same = False
    if not is_same:
        raise UserError(
            f"{source}: its dictionary has words that fairseq's format of dictionaries cannot hold "
            "(line breaks), or no word at all."
        )


def _is_language(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,50}", value) is not None


def write_checkpoint(path: str, output: str) -> int:
    """Convert a model folder to a checkpoint file, for fairseq's ``--finetune-from-model``.

    Args:
        path: Path of the folder, or of its ``model.safetensors``.
        output: Path of the checkpoint file, which must not exist.

    Returns:
        Number of updates of the model's training.
    """
    if not is_model_folder(path):
        raise UserError(f"{path}: is a checkpoint already; --to-checkpoint is for model folders.")
    check_new_file(output)
    state = load_model_folder(path)
    cfg: Any = OmegaConf.to_container(state["cfg"])
    cfg["common"]["user_dir"] = None
    num_updates = state["optimizer_history"][-1].get("num_updates", 0)
    write_checkpoint_content(
        output,
        cfg,
        state["model"],
        num_updates=num_updates,
        task_state=state["task_state"],
    )
    return num_updates


def check_new_file(path: str) -> None:
    """Raise UserError if a file exists, or the folder that it would be written to does not."""
    if os.path.lexists(path):
        raise UserError(f"{path}: exists already; name a new file.")
    check_parent(path)


def write_checkpoint_content(
    output: str,
    cfg: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    *,
    num_updates: int,
    task_state: Mapping[str, Any],
) -> None:
    """Write a checkpoint file without the state of an optimizer.

    Args:
        output: Path of the checkpoint file.
        cfg: Config of fairseq-train as nested dictionaries.
        weights: State dict of the model.
        num_updates: Number of updates of the model's training.
        task_state: State that the task saved in the checkpoint.
    """
    content = checkpoint_of_config(cfg, weights, optimizer="FairseqAdam", num_updates=num_updates)
    content["task_state"] = dict(task_state)
    try:
        with partial_path(os.path.realpath(output)) as partial, library_errors():
            torch.save(content, partial)
            os.replace(partial, os.path.realpath(output))
    except OSError as error:
        raise UserError(f"{output}: cannot be written ({error.strerror}).") from None


_SHOWN = 3  # number of tensors that a message names


def average_weights(checkpoints: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """Compute the mean of each floating-point tensor of the checkpoints, in float32.

    Tensors of integers, such as the numbers of batches that batch normalisation has seen, are the
    first checkpoint's.

    Args:
        checkpoints: At least two checkpoints.
    """
    for one in checkpoints:
        for name, tensor in one.weights.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise UserError(f"{one.path}: {name} has NaN or infinite values.")
    first, *others = checkpoints
    for other in others:
        first.check_ensemble(other)
        if other.arch != first.arch:
            raise UserError(
                f"{other.path}: must have --arch {first.arch}, as {first.path} has, to be averaged "
                f"with it, but has {other.arch}."
            )
        _check_same_shapes(first, other)
    return {
        name: _compute_mean([one.weights[name] for one in checkpoints]) for name in first.weights
    }


def write_average(checkpoints: Sequence[Checkpoint], output: str) -> None:
    """Write a checkpoint with the mean weights of several checkpoints.

    Args:
        checkpoints: Checkpoints, see :func:`average_weights`. The options of the new checkpoint are
            the first one's.
        output: Path of the new checkpoint file, which must not exist.
    """
    first = checkpoints[0]
    if len(checkpoints) < 2:
        raise UserError(
            f"--average needs two checkpoints or more, joined by {os.pathsep!r}, but has "
            f"{first.path}."
        )
    check_new_file(output)
    weights = average_weights(checkpoints)
    cfg: Any = OmegaConf.to_container(first.cfg, resolve=True, enum_to_str=True)
    write_checkpoint_content(
        output,
        cfg,
        weights,
        num_updates=first.num_updates,
        task_state=first.task_state,
    )


def _compute_mean(tensors: Sequence[Tensor]) -> Tensor:
    first = tensors[0]
    if not first.is_floating_point():
        return first
    total = first.float()
    for other in tensors[1:]:
        total = total + other.float()
    return (total / len(tensors)).to(first.dtype)


def _check_same_shapes(first: Checkpoint, other: Checkpoint) -> None:
    ours, theirs = _get_shapes(first.weights), _get_shapes(other.weights)
    names = sorted(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise UserError(
            f"{other.path}: must have the weights of {first.path} to be averaged with it, but they "
            f"differ in the shape or presence of {', '.join(names[:_SHOWN])}{more}."
        )


def _get_shapes(weights: Mapping[str, Any]) -> dict[str, torch.Size]:
    # the record of the training data is text, whose length may differ
    return {name: x.shape for name, x in weights.items() if x.is_floating_point()}
