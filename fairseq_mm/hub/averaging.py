"""Averages the weights of several checkpoints of one architecture."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_mm.errors import UserError
from fairseq_mm.hub.export import check_new_file, write_checkpoint_content
from fairseq_mm.inference.checkpoint import Checkpoint

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
