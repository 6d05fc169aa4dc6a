"""Converts checkpoints to model folders (safetensors, JSON and a model card), and back; averages
checkpoints, and separates a model from the image network that it was trained with."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_mm import __version__
from fairseq_mm.compat.loading import (
    NETWORK_PREFIX,
    has_network,
    is_model_folder,
    load_model_folder,
)
from fairseq_mm.conversion.new_checkpoint import (
    checkpoint_of_config,
    resolve_config,
    save_checkpoint,
)
from fairseq_mm.conversion.output_folder import check_output, output_folder
from fairseq_mm.data.input_files import compute_sha256
from fairseq_mm.data.model_folder import (
    CONFIG_FILE,
    FORMAT,
    FORMAT_VERSION,
    WEIGHTS_FILE,
    check_plain,
    is_count,
    read_config,
    shorten_paths,
    write_weights,
)
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.data.transcript_text import SOURCE, TARGET
from fairseq_mm.errors import UserError, file_errors
from fairseq_mm.extract.extractor import build_extractor_from_identity
from fairseq_mm.extract.trained_network import LAYERS_PREFIX
from fairseq_mm.extract.weights import DECODER, check_is_recorded
from fairseq_mm.hub.model_card import write_card
from fairseq_mm.inference.checkpoint import Checkpoint, build_models, load_models
from fairseq_mm.inference.checkpoint_files import compute_checkpoint_digest
from fairseq_mm.models._provenance import STATE_KEY, encode_json
from fairseq_mm.tasks._image_network import PhotoOptions

_SHOWN = 3  # number of tensors that a message names
SEPARATED = "checkpoint_best.pt"
# a plain name, which becomes a part of a file's name
_LANGUAGE = re.compile(r"[A-Za-z0-9_-]{1,50}")


def export_checkpoint(
    checkpoint: Checkpoint, output: str, *, scores: Optional[Sequence[Mapping[str, Any]]] = None
) -> int:
    """Write a checkpoint as a model folder: safetensors, JSON, dictionaries and a model card.

    The model is built before anything is written, so that every exported folder can be used.

    Args:
        checkpoint: Checkpoint, or another model folder. Checkpoints of fairseq's own models record
            no dictionary and must have been opened with the data folder of the training.
        output: Folder to write, which must be new or empty.
        scores: Scores for the model card, see :func:`.read_scores`.

    Returns:
        Number of weights.
    """
    check_output(output)
    # before the build, which changes the options of pretrained parts
    options = _plain_options(checkpoint)
    build_models([checkpoint], "cpu")
    with output_folder(output) as partial:
        config = _write_files(checkpoint, options, partial)
        write_card(config, checkpoint, partial, scores=scores)
    return config["weights"]["parameters"]


def _write_files(checkpoint: Checkpoint, options: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Write weights, vocabulary and ``config.json`` to a folder; return the config.

    ``options`` is the result of :func:`_plain_options`.
    """
    weights = write_weights(checkpoint.weights, folder)
    _write_vocabulary(checkpoint, folder)
    names = sorted(set(os.listdir(folder)) - {WEIGHTS_FILE})
    history = (checkpoint.state.get("optimizer_history") or [{}])[-1]
    iterator = (checkpoint.state.get("extra_state") or {}).get("train_iterator") or {}
    # name of the package that defines the model or its task, if it is a stranger's
    kinds = (ARCH_MODEL_REGISTRY.get(checkpoint.arch), TASK_REGISTRY.get(checkpoint.task_name))
    packages = [kind.__module__.partition(".")[0] for kind in kinds if kind is not None]
    plugins = [name for name in packages if name not in ("fairseq", "fairseq_mm")]
    config = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "fairseq_mm_version": __version__,
        "architecture": checkpoint.arch,
        "task": checkpoint.task_name,
        "plugin": plugins[0] if plugins else None,
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
    with open(os.path.join(folder, CONFIG_FILE), "w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(config, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return read_config(folder)  # every folder that is written can be read


def _plain_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the options of model and task as plain JSON, without absolute paths."""
    plain: dict[str, Any] = {}
    with file_errors(checkpoint.path, "cannot be exported"):
        for name in ("model", "task"):
            # resolved: options may refer to sections that the folder does not have
            values = resolve_config(checkpoint.cfg[name], checkpoint.path)
            plain[f"{name}_options"] = {key: x for key, x in values.items() if key != "_name"}
        plain["task_state"] = dict(checkpoint.task_state)
        for name, options in plain.items():
            check_plain(options, name)
    return shorten_paths(plain)


def _write_vocabulary(checkpoint: Checkpoint, folder: str) -> None:
    """Write the dictionaries, under their names in data folders, and the subword model.

    Only fairseq's own models are built from these files. The weights of other models contain the
    words; for them, the files serve readers and ``fairseq-mm prepare --dictionary``.
    """
    provenance = checkpoint.provenance
    words, source_words = provenance["words"], provenance.get("source_words")
    sides = [checkpoint.cfg["task"].get(f"{side}_lang") for side in ("target", "source")]
    dictionaries = {"dict.txt": words}
    if checkpoint.input_kind == "videos":
        # both texts share it, and data folders have it under both names
        dictionaries = {f"dict.{side}.txt": words for side in (SOURCE, TARGET)}
    elif source_words is not None and all(_LANGUAGE.fullmatch(str(side or "")) for side in sides):
        dictionaries = {f"dict.{sides[0]}.txt": words, f"dict.{sides[1]}.txt": source_words}
    elif source_words is not None:
        kind = "tags" if checkpoint.reads_structure else "source"
        dictionaries[f"dict.{kind}.txt"] = source_words
    for name, content in dictionaries.items():
        seen = set(Dictionary().symbols)
        with open(os.path.join(folder, name), "w", encoding="utf-8", newline="\n") as file:
            for word in content:
                # the format wants counts, which checkpoints lack; only the order matters
                file.write(f"{word} 1{' #fairseq:overwrite' if word in seen else ''}\n")
                seen.add(word)
    if provenance.get("subwords"):
        Subwords.from_state(provenance["subwords"]).save(folder)


def write_checkpoint(path: str, output: str) -> int:
    """Convert a model folder to a new checkpoint file, for fairseq's ``--finetune-from-model``;
    return the number of updates of the model's training."""
    if not is_model_folder(path):
        raise UserError(f"{path}: is a checkpoint already; --to-checkpoint is for model folders.")
    check_output(output, is_file=True)
    state = load_model_folder(path)
    cfg: Any = OmegaConf.to_container(state["cfg"])
    cfg["common"]["user_dir"] = None
    num_updates = state["optimizer_history"][-1].get("num_updates", 0)
    _save(output, cfg, state["model"], num_updates, state["task_state"])
    return num_updates


def _save(
    output: str,
    cfg: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    num_updates: int,
    task_state: Mapping[str, Any],
) -> None:
    content = checkpoint_of_config(cfg, weights, optimizer="FairseqAdam", num_updates=num_updates)
    save_checkpoint({**content, "task_state": dict(task_state)}, output)


def write_average(checkpoints: Sequence[Checkpoint], output: str) -> None:
    """Write a new checkpoint with the mean of each floating-point tensor, computed in float32.
    Integer tensors, such as counts of batch normalisation, and options are the first
    checkpoint's."""
    check_output(output, is_file=True)
    first, *others = checkpoints
    for other in others:
        first.check_ensemble(other)
        ours, theirs = _get_shapes(first.weights), _get_shapes(other.weights)
        names = sorted(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
        if names or other.arch != first.arch:
            listed = f" ({', '.join(names[:_SHOWN])})" if names else ""
            raise UserError(
                f"{other.path}: must have the --arch and weights of {first.path} to be averaged "
                f"with it, but differs{listed}."
            )
    means = dict(first.weights)
    for name, x in first.weights.items():
        if x.is_floating_point():
            total: Any = sum(one.weights[name].float() for one in checkpoints)
            means[name] = (total / len(checkpoints)).to(x.dtype)
    cfg = resolve_config(first.cfg, first.path)
    _save(output, cfg, means, first.num_updates, first.task_state)


def _get_shapes(weights: Mapping[str, Any]) -> dict[str, torch.Size]:
    # the record of the training data is text, whose length may differ
    return {name: x.shape for name, x in weights.items() if x.is_floating_point()}


def separate_network(checkpoint: Checkpoint, output: str) -> str:
    """Write a folder with the model's checkpoint and the weights of its image network.

    The network's weights are a file for ``fairseq-mm extract --weights``. The new checkpoint
    records its SHA-256, so that the model accepts only features of the trained network.

    Args:
        checkpoint: Checkpoint of a training with ``--photos``.
        output: Folder to write, which must be new or empty.

    Returns:
        Name of the network, and without ``.pt`` of its extractor.
    """
    if not has_network(checkpoint.weights):
        raise UserError(
            f"{checkpoint.path}: must contain an image network (trained with --photos) to be "
            "separated, but does not."
        )
    check_is_recorded(checkpoint.extractor, checkpoint.path)
    check_output(output)
    network: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}
    for name, value in checkpoint.weights.items():
        is_network = name.startswith(NETWORK_PREFIX)
        (network if is_network else weights)[name.removeprefix(NETWORK_PREFIX)] = value
    cfg = resolve_config(checkpoint.cfg, checkpoint.path)
    for name in PhotoOptions.__dataclass_fields__:
        cfg["task"].pop(name, None)
    file = f"{checkpoint.extractor['extractor']}.pt"
    with output_folder(output) as partial:
        path = os.path.join(partial, file)
        # torchvision's names and dtype
        save_checkpoint(
            {x.removeprefix(LAYERS_PREFIX): y.float() for x, y in network.items()}, path
        )
        # the training read images that Pillow decoded, whatever decoded them before
        known = {x: value for x, value in checkpoint.extractor.items() if x != DECODER}
        extractor = {**known, "weights": compute_sha256(path)}
        build_extractor_from_identity(extractor, path)  # fails if the weights do not fit
        weights[STATE_KEY] = encode_json({**checkpoint.provenance, "extractor": extractor})
        path = os.path.join(partial, SEPARATED)
        _save(path, cfg, weights, checkpoint.num_updates, checkpoint.task_state)
        load_models(path, device="cpu")  # fails if weights are missing
    return file
