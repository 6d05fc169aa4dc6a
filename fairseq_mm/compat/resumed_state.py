"""Checks of the training state in a checkpoint: a training refuses values that it cannot use."""

import math
import numbers
import reprlib
from collections.abc import Mapping
from typing import Any

from fairseq_mm.compat.half_precision import check_added_state
from fairseq_mm.compat.scope import in_our_trainers
from fairseq_mm.errors import UserError

# entries of optimizers' states that have the shape of their parameter
_SHAPED = (
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer"),
    *("square_avg", "acc_delta", "sum"),
)
_REMEDY = "give an earlier checkpoint, or --reset-optimizer"


def check_resumed_state() -> None:
    """Wrong values in a checkpoint's optimizer state load, and fail or loop later.

    Counters and the loss scale are checked before fairseq uses them. Tensors of the optimizer are
    checked when it has them: they are matched with its parameters then. Goes when fairseq checks
    them.
    """
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    resume = Trainer.load_checkpoint

    @in_our_trainers(resume)
    def load_checkpoint(
        self: Any, filename: str, reset_optimizer: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        load = checkpoint_utils.load_checkpoint_to_cpu

        def load_checked(path: str, *args: Any, **kwargs: Any) -> Any:
            state = load(path, *args, **kwargs)
            _check_counters(state, path, has_optimizer=not reset_optimizer)
            return state

        checkpoint_utils.load_checkpoint_to_cpu = load_checked
        try:
            extra_state = resume(self, filename, reset_optimizer, *args, **kwargs)
        finally:
            checkpoint_utils.load_checkpoint_to_cpu = load
        if extra_state is not None and not reset_optimizer:
            _check_optimizer(self.optimizer, filename)
        return extra_state

    Trainer.load_checkpoint = load_checkpoint


def _check_counters(state: Any, path: str, *, has_optimizer: bool) -> None:
    """
    Raises:
        UserError: if the number of updates, the position in the data, the loss scale or the state
            that this package adds is of a wrong type or out of its range.
    """
    for entry in state.get("optimizer_history") or []:
        if "num_updates" in entry:
            _check_count(entry["num_updates"], f"{path}: num_updates of its optimizer_history")
    iterator = (state.get("extra_state") or {}).get("train_iterator") or {}
    for name in ("epoch", "iterations_in_epoch"):
        if name in iterator:
            _check_count(iterator[name], f"{path}: {name} of its train_iterator")
    optimizer = state.get("last_optimizer_state")
    if optimizer is None or not has_optimizer:
        return
    if not isinstance(optimizer, Mapping):
        raise UserError(f"{path}: its last_optimizer_state must be a dictionary; {_REMEDY}.")
    scale = optimizer.get("loss_scale", 1.0)
    is_number = isinstance(scale, numbers.Real) and not isinstance(scale, bool)
    if not is_number or not 0 < scale < math.inf:
        raise UserError(
            f"{path}: loss_scale of its optimizer state must be a finite number above 0, but is "
            f"{reprlib.repr(scale)}; {_REMEDY}."
        )
    check_added_state(optimizer, path)


def _check_count(value: Any, where: str) -> None:
    """
    Raises:
        UserError: if the value is no integer of 0 or more.
    """
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < 0:
        raise UserError(
            f"{where} must be an integer of 0 or more, but is {reprlib.repr(value)}; give an "
            "earlier checkpoint."
        )


def _check_optimizer(optimizer: Any, path: str) -> None:
    """
    Raises:
        UserError: if the state of a parameter has text or numbers that are not finite, or a
            tensor of another shape than the parameter.
    """
    states = getattr(optimizer.optimizer, "state", None)
    for parameter, state in states.items() if isinstance(states, Mapping) else ():
        for name, value in state.items() if isinstance(state, Mapping) else ():
            found = _describe_fault(name, value, parameter)
            if found is not None:
                raise UserError(
                    f"{path}: {name} of its optimizer state, for a parameter of shape "
                    f"{tuple(parameter.shape)}, {found}; {_REMEDY}."
                )


def _describe_fault(name: str, value: Any, parameter: Any) -> Any:
    """Return what an entry must be and is, or None if it is right."""
    import torch

    if name == "momentum_buffer" and value is None:
        return None  # SGD has no buffer before its first update
    if isinstance(value, torch.Tensor):
        if name in _SHAPED and value.shape != parameter.shape:
            return f"must have this shape, but has {tuple(value.shape)}"
        if name == "step" and value.numel() != 1:
            return f"must be one number, but has shape {tuple(value.shape)}"
        return None if bool(value.isfinite().all()) else "must be finite, but is not"
    if name in _SHAPED:
        return f"must be a tensor, but is a {type(value).__name__}"
    if name == "step" or isinstance(value, (str, numbers.Real)):
        is_number = isinstance(value, numbers.Real) and math.isfinite(value)
        return None if is_number else f"must be a finite number, but is a {type(value).__name__}"
    return None
