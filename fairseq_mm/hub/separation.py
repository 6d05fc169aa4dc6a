"""Separates a model from the image network that it was trained with."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_mm.compat.image_network import NETWORK_PREFIX, has_network
from fairseq_mm.conversion.output_folder import output_folder
from fairseq_mm.data.input_files import compute_sha256
from fairseq_mm.data.output_file import library_errors
from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import build_extractor_from_identity
from fairseq_mm.extract.identity import DECODER, check_is_recorded
from fairseq_mm.extract.trained_network import get_torchvision_weights
from fairseq_mm.hub.export import check_new_folder, write_checkpoint_content
from fairseq_mm.inference.checkpoint import Checkpoint, load_models
from fairseq_mm.models._provenance import STATE_KEY, encode_json
from fairseq_mm.tasks._image_network import PhotoOptions

CHECKPOINT = "checkpoint_best.pt"


class SeparatedModel(NamedTuple):
    """Summary of a separation.

    Attributes:
        checkpoint: Path of the checkpoint without image network.
        weights: Path of the network's weights.
        extractor: Attributes that identify the network as an extractor of features.
    """

    checkpoint: str
    weights: str
    extractor: dict[str, Any]


def separate_network(checkpoint: Checkpoint, output: str) -> SeparatedModel:
    """Write a folder with the model's checkpoint and the weights of its image network.

    The network's weights are a file for ``fairseq-mm extract --weights``. The new checkpoint
    records its SHA-256, so that the model accepts only features of the trained network.

    Args:
        checkpoint: Checkpoint of a training with ``--photos``.
        output: Folder to write; it must not exist, or be empty.
    """
    if not has_network(checkpoint.weights):
        raise UserError(
            f"{checkpoint.path}: must contain an image network (trained with --photos) to be "
            "separated, but does not."
        )
    check_is_recorded(checkpoint.extractor, checkpoint.path)
    check_new_folder(output)
    network: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}
    for name, value in checkpoint.weights.items():
        if name.startswith(NETWORK_PREFIX):
            if not isinstance(value, Tensor):
                raise UserError(
                    f"{checkpoint.path}: {name} must be a tensor, but is a {type(value).__name__}."
                )
            network[name[len(NETWORK_PREFIX) :]] = value
        else:
            weights[name] = value
    name = f"{checkpoint.extractor['extractor']}.pt"
    with output_folder(output) as partial, library_errors(), _naming(checkpoint.path, partial):
        path = os.path.join(partial, name)
        torch.save(get_torchvision_weights(network), path)
        # the training read images that Pillow decoded, whatever decoded them before
        known = {x: value for x, value in checkpoint.extractor.items() if x != DECODER}
        extractor = {**known, "weights": compute_sha256(path)}
        build_extractor_from_identity(extractor, path)  # fails if the weights do not fit
        weights[STATE_KEY] = encode_json({**checkpoint.provenance, "extractor": extractor})
        write_checkpoint_content(
            os.path.join(partial, CHECKPOINT),
            _config_without_network(checkpoint),
            weights,
            num_updates=checkpoint.num_updates,
            task_state=checkpoint.task_state,
        )
        load_models(os.path.join(partial, CHECKPOINT), device="cpu")  # fails if weights are missing
    return SeparatedModel(os.path.join(output, CHECKPOINT), os.path.join(output, name), extractor)


@contextlib.contextmanager
def _naming(checkpoint: str, folder: str) -> Iterator[None]:
    """Name the checkpoint in errors about the files of a temporary folder."""
    try:
        yield
    except UserError as error:
        file, _, problem = str(error).partition(": ")
        if os.path.dirname(file) != folder:
            raise UserError(f"{checkpoint}: {error}") from None
        owner = "" if os.path.basename(file) == CHECKPOINT else "its image network "
        raise UserError(f"{checkpoint}: {owner}{problem}") from None


def _config_without_network(checkpoint: Checkpoint) -> dict[str, Any]:
    cfg: Any = OmegaConf.to_container(checkpoint.cfg, resolve=True, enum_to_str=True)
    for name in PhotoOptions.__dataclass_fields__:
        cfg["task"].pop(name, None)
    return cfg
