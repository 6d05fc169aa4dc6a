"""Writes checkpoints of this package from the authors' models of VSE, VSE++, GLAC and Transtory-XL.

``released_vse.py``, ``released_vsepp.py`` and ``released_visual_stories.py`` read these released
models. The output folder has ``checkpoint_best.pt`` and ``dict.txt``. If the released model
contains its image network, the folder also has ``cnn.pt``, a state dict for ``fairseq-mm extract
--weights``; the checkpoint then accepts only features of this network.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch

from fairseq_mm.conversion.new_checkpoint import checkpoint_state, format_flags
from fairseq_mm.conversion.output_folder import check_output_folder, output_folder
from fairseq_mm.conversion.released_vse import ReleasedModel
from fairseq_mm.data.output_file import library_errors
from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import build_extractor
from fairseq_mm.models._provenance import STATE_KEY, Provenance

CHECKPOINT, DICTIONARY, NETWORK = "checkpoint_best.pt", "dict.txt", "cnn.pt"


@dataclass
class ConvertedModel:
    """Summary of the conversion of a released model.

    Attributes:
        folder: Folder that was written.
        released: Released model that was converted.
        parameters: Number of weights in the new checkpoint.
        feature_dim: Dimension of the image features that the model reads.
    """

    folder: str
    released: ReleasedModel
    parameters: int
    feature_dim: int


def convert_released(
    released: ReleasedModel, output: str, *, overwrite: bool = False
) -> ConvertedModel:
    """Write a checkpoint of a released model to a folder, and return a summary of the conversion.

    Args:
        released: Released model, whose weights have the names of this package already.
        output: Folder to write.
        overwrite: True to replace files of an existing folder.
    """
    check_output_folder(output, overwrite=overwrite, reads=released.path)
    # torch.save would write the whole memory behind each slice and keep transposed layouts
    weights = {name: x.contiguous() for name, x in released.weights.items()}
    feature_dim = weights[released.image_weight].size(1)
    flags = format_flags({**released.options, **released.criterion})
    arguments = [".", "--task", released.task, "--arch", released.arch]
    arguments += ["--criterion", released.criterion_name, *flags]
    with output_folder(output) as partial:
        identity: dict[str, Any] = {}
        if released.cnn_type:
            identity = _write_network(released, os.path.join(partial, NETWORK), feature_dim)
        provenance = Provenance(
            released.words, identity, feature_dim, rows_per_image=released.rows_per_image
        )
        state = checkpoint_state(arguments, {**weights, STATE_KEY: provenance.get_extra_state()})
        with library_errors():
            torch.save(state, os.path.join(partial, CHECKPOINT))
        with open(os.path.join(partial, DICTIONARY), "w", encoding="utf-8", newline="\n") as file:
            # the format wants counts, which the released files lack; only the order matters
            file.writelines(f"{word} 1\n" for word in released.words)
    return ConvertedModel(output, released, sum(x.numel() for x in weights.values()), feature_dim)


def _write_network(released: ReleasedModel, path: str, feature_dim: int) -> dict[str, Any]:
    """Write the state dict of a released model's image network to ``path``."""
    with library_errors():
        torch.save(released.cnn, path)
    # building the extractor checks the weights and computes their digest, as extract will do
    try:
        extractor = build_extractor(released.cnn_type, weights=path)
    except UserError as error:
        # the path is a temporary folder, which is gone when the message is read
        message = str(error).replace(path, f"its network {released.cnn_type}")
        raise UserError(f"{released.path}: {message}") from None
    if extractor.dim != feature_dim:
        raise UserError(
            f"{released.path}: {released.cnn_type} gives features of dimension "
            f"{extractor.dim}, but the model takes {feature_dim}."
        )
    return dict(extractor.identity)
