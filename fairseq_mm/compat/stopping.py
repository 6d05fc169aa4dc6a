"""Repairs how trainings stop and resume, and how fairseq writes their checkpoints.

fairseq checks limits only after an update. If the command of a finished training is repeated,
fairseq therefore trains one more update each time, and replaces checkpoints.
"""

import contextlib
import dataclasses
import functools
import logging
import math
import os
import shutil
import sys
from typing import Any, Optional

from fairseq_mm.compat import loading
from fairseq_mm.compat.activation import uses_ours
from fairseq_mm.errors import UserError, WeightsError, file_errors

# the logger of the training, because --log-file saves its messages
logger = logging.getLogger("fairseq_cli.train")

# key of the extra state of checkpoints
_KEY = "stopping"
# fairseq counts --patience in attributes of its function should_stop_early, and PyTorch's
# ReduceLROnPlateau counts in attributes of the scheduler; checkpoints have neither
_PATIENCE = ("best", "num_runs")
_PLATEAU = ("last_epoch", "num_bad_epochs", "cooldown_counter")


def keep_finished_trainings() -> None:
    """Make a repeated command of a finished training do nothing, for every stopping rule.

    Checkpoints then also contain the counter of ``--patience``, the learning rate and the state of
    ``reduce_lr_on_plateau``. A resumed training stops where an uninterrupted one would. With a
    larger limit, a finished training continues as if the limit had been larger from the start.
    """
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    load = checkpoint_utils.load_checkpoint
    save_state, begin_validation = Trainer.save_checkpoint, Trainer.begin_valid_epoch

    @functools.wraps(begin_validation)
    def begin_valid_epoch(self: Any, epoch: int) -> None:
        self.patience_before_validation = _patience()
        begin_validation(self, epoch)

    @functools.wraps(save_state)
    def save_checkpoint(self: Any, filename: str, extra_state: dict[str, Any]) -> Any:
        if "train_iterator" in extra_state:  # it is missing in fairseq's crash.pt
            extra_state = {**extra_state, _KEY: _state(self, extra_state)}
        return save_state(self, filename, extra_state)

    @functools.wraps(load)
    def load_checkpoint(cfg: Any, trainer: Any, **kwargs: Any) -> Any:
        if not uses_ours(trainer):
            return load(cfg, trainer, **kwargs)
        # fairseq keeps scores in attributes of functions, where an earlier training leaves its own
        for function in _counting_functions():
            for name in _PATIENCE:
                vars(function).pop(name, None)
        vars(checkpoint_utils.save_checkpoint).pop("best", None)
        extra_state, epochs = load(cfg, trainer, **kwargs)
        if extra_state is not None:
            with file_errors(trainer.restart.filename, "cannot be continued"):
                trainer.restart.resume(trainer, extra_state, epochs)
        return extra_state, epochs

    _watch_restarts()
    Trainer.begin_valid_epoch = begin_valid_epoch
    Trainer.save_checkpoint = save_checkpoint
    checkpoint_utils.load_checkpoint = load_checkpoint


def _counting_functions() -> list[Any]:
    """Return fairseq's function ``should_stop_early``, which counts in attributes of its own. If
    ``fairseq_cli/train.py`` is the program, its copy counts instead, and is returned first."""
    # if the program has the function, then this copy counts, so the program is first
    modules = (sys.modules.get(name) for name in ("__main__", "fairseq_cli.train"))
    functions = (getattr(module, "should_stop_early", None) for module in modules)
    return [function for function in functions if function is not None]


def _patience() -> dict[str, Any]:
    for function in _counting_functions():
        if hasattr(function, "num_runs"):
            return {name: getattr(function, name) for name in _PATIENCE}
    return {}


def _score(cfg: Any) -> list[Any]:
    """Return the values of the options that define which checkpoint fairseq considers the best."""
    return [
        cfg.dataset.valid_subset.split(",")[0],
        cfg.checkpoint.best_checkpoint_metric,
        cfg.checkpoint.maximize_best_checkpoint_metric,
    ]


def _state(trainer: Any, extra_state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the stopping rules for a checkpoint.

    If fairseq validates only because a limit is reached, the score of this validation is left out:
    a training with a larger limit would not compute it. ``extra_state`` is the entry of this name
    in fairseq's checkpoints.
    """
    # planned by an interval such as --validate-interval, or only because the training ends
    data, updates = trainer.cfg.dataset, trainer.get_num_updates()
    position, intervals = extra_state["train_iterator"], [data.validate_interval_updates]
    is_planned = False
    if position["iterations_in_epoch"] > 0:
        intervals.append(trainer.cfg.checkpoint.save_interval_updates)
    else:
        is_planned = (position["epoch"] - 1) % data.validate_interval == 0
    is_planned |= any(interval > 0 and updates % interval == 0 for interval in intervals)
    plateau = getattr(trainer.lr_scheduler, "lr_scheduler", None)
    before = getattr(trainer, "patience_before_validation", {})
    return {
        "score": _score(trainer.cfg),
        "patience": _patience() if is_planned or extra_state["val_loss"] is None else before,
        "val_loss": extra_state["val_loss"] if is_planned else None,
        "lr": trainer.get_lr(),
        "plateau": {name: getattr(plateau, name) for name in _PLATEAU if hasattr(plateau, name)},
    }


@dataclasses.dataclass
class Restart:
    """Checkpoint from which a training restarts, and fairseq's ``--reset-...`` options."""

    filename: str
    reset_optimizer: bool
    reset_lr_scheduler: bool
    reset_meters: bool

    def resume(self, trainer: Any, extra_state: dict[str, Any], epochs: Any) -> None:
        """Restore the state of the stopping rules, and end the training if a limit is reached."""
        from fairseq import checkpoint_utils

        state = extra_state.get(_KEY, {})
        if self.reset_optimizer:
            # a fine-tuning has not trained for as long as its pretrained model
            trainer._previous_training_time = 0
        if not (self.reset_optimizer or self.reset_meters) and state:
            if state["score"] == _score(trainer.cfg):
                for function in _counting_functions():
                    vars(function).update(state["patience"])
            else:
                subset, metric, _ = state["score"]
                logger.info(
                    "--patience and the best checkpoint start anew: the checkpoint has scores of "
                    f"{metric} on {subset}"
                )
                vars(checkpoint_utils.save_checkpoint).pop("best", None)
        lr = None
        if not (self.reset_optimizer or self.reset_lr_scheduler) and state:
            lr = _resume_schedule(trainer, state, extra_state["train_iterator"], epochs)
        reasons = self._reached_limits(trainer, epochs, lr)
        if reasons:
            logger.info(
                f"nothing to do: the training of {self.filename} is finished "
                f"({'; '.join(reasons)}). Larger limits continue it."
            )
            # fairseq reads both next: it neither reads the validation data nor begins an epoch
            trainer.cfg.dataset.disable_validation = True
            trainer.cfg.optimization.max_epoch = -1

    def _reached_limits(self, trainer: Any, epochs: Any, lr: Optional[float]) -> list[str]:
        limits, patience = trainer.cfg.optimization, trainer.cfg.checkpoint.patience
        reasons = []
        # with --no-save-optimizer-state, fairseq counts updates from 0 again
        updates = 0 if self.reset_optimizer else trainer._optim_history[-1]["num_updates"]
        if 0 < limits.max_update <= updates:
            reasons.append(f"{updates} updates, --max-update {limits.max_update}")
        if 0 < limits.max_epoch < epochs.next_epoch_idx:
            done = epochs.next_epoch_idx - 1
            reasons.append(f"{done} epochs, --max-epoch {limits.max_epoch}")
        without_gain = _patience().get("num_runs", 0)
        if 0 < patience <= without_gain:
            validations = "validation" if without_gain == 1 else "validations"
            reasons.append(f"{without_gain} {validations} without gain, --patience {patience}")
        if lr is not None and lr <= limits.stop_min_lr:
            reasons.append(f"learning rate {lr:g}, --stop-min-lr {limits.stop_min_lr:g}")
        hours = trainer._previous_training_time / 3600
        if 0 < limits.stop_time_hours < hours:
            reasons.append(f"{hours:.3g} hours, --stop-time-hours {limits.stop_time_hours:g}")
        return reasons


def _resume_schedule(
    trainer: Any, state: dict[str, Any], position: dict[str, Any], epochs: Any
) -> Optional[float]:
    """Set and return the learning rate that an uninterrupted training would have at this point;
    return None if the training resumes within an epoch, or with ``--reset-dataloader``.

    ``state`` and ``position`` are the checkpoint's states of the stopping rules and of the data.
    """
    if state["plateau"] and trainer.get_num_updates() > 0:
        vars(trainer.lr_scheduler.lr_scheduler).update(state["plateau"])
    if epochs.iterations_in_epoch > 0:
        # fairseq compares with --stop-min-lr between epochs, and here it would end one early
        _answer_once(trainer, math.inf)
        return None
    if position["iterations_in_epoch"] > 0 or epochs.next_epoch_idx != position["epoch"]:
        return None  # --reset-dataloader
    lr = state["lr"]
    if trainer.get_num_updates() > 0:
        # fairseq saves a checkpoint before it calls lr_step, so that schedules by epochs are behind
        before = trainer.get_lr()
        after = trainer.lr_step(position["epoch"] - 1, state["val_loss"])
        lr = lr if after == before else after
    _answer_once(trainer, lr)
    return lr


def _answer_once(trainer: Any, lr: float) -> None:
    """Make the next call of ``trainer.get_lr``, at the beginning of an epoch, return ``lr``."""

    def get_lr() -> float:
        del trainer.get_lr
        return lr

    trainer.get_lr = get_lr


def _watch_restarts() -> None:
    """Make trainers record a :class:`Restart`, and name a checkpoint that does not fit."""
    from fairseq.trainer import Trainer

    resume = Trainer.load_checkpoint

    @functools.wraps(resume)
    def load_checkpoint(
        self: Any,
        filename: str,
        reset_optimizer: bool = False,
        reset_lr_scheduler: bool = False,
        optimizer_overrides: Any = None,
        reset_meters: bool = False,
    ) -> Any:
        options = (reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters)
        if not uses_ours(self):
            return resume(self, filename, *options)
        self.restart = Restart(filename, reset_optimizer, reset_lr_scheduler, reset_meters)
        loading.is_resuming = True
        try:
            return resume(self, filename, *options)
        except Exception as error:
            if isinstance(error.__context__, WeightsError):
                raise UserError(f"{filename}: {error.__context__}") from None
            raise
        finally:
            loading.is_resuming = False

    Trainer.load_checkpoint = load_checkpoint


def repair_writing_of_checkpoints() -> None:
    """Make fairseq copy a checkpoint under a temporary name and then rename the copy, so that a
    killed run leaves no incomplete checkpoint. The disk needs space for one more."""
    from fairseq.file_io import PathManager

    copy_in_place = PathManager.copy

    @functools.wraps(copy_in_place)
    def copy(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
        is_remote = any(map(PathManager.path_requires_pathmanager, (src_path, dst_path)))
        if not overwrite or is_remote:
            return copy_in_place(src_path, dst_path, overwrite=overwrite)
        # fairseq overwrites checkpoint_last.pt and checkpoint_best.pt in place
        temporary = f"{dst_path}.tmp"
        try:
            shutil.copyfile(src_path, temporary)
            _rename(temporary, dst_path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(temporary)
            raise
        return True

    PathManager.copy = staticmethod(copy)
    PathManager.rename = staticmethod(_rename)


def _rename(source: str, destination: str) -> None:
    """Rename a file after all of its bytes have reached the disk."""
    # otherwise a power failure can leave an empty file under the new name
    _sync(source)
    os.replace(source, destination)
    # the new name is an entry of the folder, which has its own buffers
    _sync(os.path.dirname(os.path.abspath(destination)))


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        # some file systems do not support it
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
