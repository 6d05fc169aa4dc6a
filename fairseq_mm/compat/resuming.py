"""Adds checks to fairseq's functions that load checkpoints and resume trainings."""

import contextlib
import functools
import math
import numbers
import os
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from fairseq_mm.compat.half_precision import (
    change_precision,
    check_added_state,
    restore_amp_retries,
)
from fairseq_mm.compat.loading import check_is_whole, named_failures, use_averaged_weights
from fairseq_mm.compat.model_folders import is_model_folder, load_model_folder
from fairseq_mm.compat.scope import uses_ours
from fairseq_mm.compat.stopping import Restart
from fairseq_mm.compat.training import add_num_shards
from fairseq_mm.compat.unpickling import refusal
from fairseq_mm.errors import UserError

# entries of optimizers' states that have the shape of their parameter
_SHAPED = (
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer"),
    *("square_avg", "acc_delta", "sum"),
)
_REMEDY = "give an earlier checkpoint, or --reset-optimizer"


def check_loaded_checkpoints() -> None:
    """Add checks of checkpoints to fairseq's functions that load them and resume trainings.

    All repairs that check or change a loaded checkpoint are called here, because their order
    matters.
    """
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    load_models = checkpoint_utils.load_model_ensemble_and_task
    load, resume = checkpoint_utils.load_checkpoint_to_cpu, Trainer.load_checkpoint

    @functools.wraps(load_models)
    def load_model_ensemble_and_task(filenames: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            with named_failures(os.pathsep.join(map(str, filenames))), _averaged_weights():
                return load_models(filenames, *args, **kwargs)
        except OSError as error:
            # fairseq raises this error itself, without an error number
            if error.errno is None and str(error).startswith("Model file not found"):
                raise UserError(str(error)) from None
            raise

    @functools.wraps(load)
    def load_checkpoint_to_cpu(
        path: str, arg_overrides: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if is_model_folder(path):
            return load_model_folder(path, arg_overrides)
        # before the file is read: the error of a damaged zip archive does not name the file
        check_is_whole(path)
        try:
            return load(path, arg_overrides, *args, **kwargs)
        except (UserError, OSError):
            raise
        except Exception as error:  # fairseq takes any file for a checkpoint of some age
            raise refusal(path, error, kind="fairseq checkpoint") from error

    @functools.wraps(resume)
    def load_checkpoint(
        self: Any,
        filename: str,
        reset_optimizer: bool = False,
        reset_lr_scheduler: bool = False,
        optimizer_overrides: Any = None,
        reset_meters: bool = False,
    ) -> Any:
        def load_training_state(path: str, *args: Any, **kwargs: Any) -> Any:
            state = load_to_cpu(path, *args, **kwargs)
            # before the counters are used, by add_num_shards and by fairseq
            _check_counters(state, path, has_optimizer=not reset_optimizer)
            add_num_shards(state)
            # here, because fairseq then sends the state to the other processes
            if not reset_optimizer and "last_optimizer_state" in state:
                change_precision(self, state, path)
            return state

        options = (reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters)
        with named_failures(filename):
            if not uses_ours(self):
                return resume(self, filename, *options)
            self.restart = Restart(filename, reset_optimizer, reset_lr_scheduler, reset_meters)
            # Trainer.load_checkpoint reads the file itself, so the function is replaced meanwhile
            load_to_cpu = checkpoint_utils.load_checkpoint_to_cpu
            checkpoint_utils.load_checkpoint_to_cpu = load_training_state
            try:
                extra_state = resume(self, filename, *options)
            finally:
                checkpoint_utils.load_checkpoint_to_cpu = load_to_cpu
            restore_amp_retries(self)
            # only now has the optimizer matched its tensors with the parameters
            if extra_state is not None and not reset_optimizer:
                _check_optimizer(self.optimizer, filename)
        return extra_state

    checkpoint_utils.load_model_ensemble_and_task = load_model_ensemble_and_task
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
    Trainer.load_checkpoint = load_checkpoint


@contextlib.contextmanager
def _averaged_weights() -> Iterator[None]:
    """Let fairseq load the average of a checkpoint's weights in a ``with`` block.

    See :func:`.use_averaged_weights`.
    """
    from fairseq import checkpoint_utils

    load = checkpoint_utils.load_checkpoint_to_cpu

    def load_checkpoint_to_cpu(path: str, *args: Any, **kwargs: Any) -> Any:
        state = load(path, *args, **kwargs)
        use_averaged_weights(state, path)
        return state

    # fairseq's functions read the files themselves, so the function that they call is replaced
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
    try:
        yield
    finally:
        checkpoint_utils.load_checkpoint_to_cpu = load


def _check_counters(state: Any, path: str, *, has_optimizer: bool) -> None:
    """Raise UserError if a number in a checkpoint from which a training resumes is out of range.

    The numbers are the number of updates and the position in the training data.

    Args:
        state: Content of the checkpoint.
        path: Path of the checkpoint, for messages.
        has_optimizer: If True, also check the loss scale, and the weights and numbers that
            :mod:`.half_precision` adds to the optimizer's state.
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
    # a bool is an Integral, too
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < 0:
        raise UserError(
            f"{where} must be an integer of 0 or more, but is {reprlib.repr(value)}; give an "
            "earlier checkpoint."
        )


def _check_optimizer(optimizer: Any, path: str) -> None:
    """Raise UserError if the optimizer's state of a parameter is not finite or has a wrong shape.

    Args:
        optimizer: fairseq's optimizer, which has loaded the checkpoint ``path``.
        path: Path of the checkpoint, for messages.
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
    """Return a clause that says what is wrong with a value in the optimizer's state, or None.

    Args:
        name: Name of the value, such as ``exp_avg``.
        value: Value, such as the running mean of the gradients.
        parameter: Parameter of the model to which the value belongs.
    """
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
