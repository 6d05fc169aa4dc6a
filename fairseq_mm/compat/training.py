"""Repairs trainings: order of data after a restart, data workers, gradients, float32 weights.

With ``--fp16`` and ``--bf16``, fairseq's optimizer updates a float32 copy of the weights, which
fairseq does not save.
"""

import contextlib
import functools
import logging
import math
import multiprocessing
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger(__name__)

# entry of a checkpoint's optimizer state; fairseq without the plugin ignores it there
_KEY = "fairseq_mm_half_precision"
_COUNTERS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


def repair_position_of_resumed_data() -> None:
    """Make a training resume at the right position within an epoch.

    The number of processes or the batch size may have changed. The fraction of the epoch's data
    that has been used already is skipped; at most the batches of one update are used twice.
    """
    from fairseq.data.iterators import EpochBatchIterator

    save, resume = EpochBatchIterator.state_dict, EpochBatchIterator.load_state_dict

    @functools.wraps(save)
    def state_dict(self: Any) -> dict[str, Any]:
        return {**save(self), "num_batches": len(self.frozen_batches)}

    @functools.wraps(resume)
    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        # fairseq skips in each process as many batches as each process had read: two processes
        # after one skip twice the data, and one process after two repeats half of the data
        if state_dict.get("iterations_in_epoch", 0):
            state_dict = {**state_dict, "iterations_in_epoch": _position(self, state_dict)}
        resume(self, state_dict)

    EpochBatchIterator.state_dict = state_dict
    EpochBatchIterator.load_state_dict = load_state_dict


def _position(iterator: Any, state: dict[str, Any]) -> int:
    """Return the number of batches of the epoch that each process must skip when it resumes.

    At least one batch of the epoch is not skipped. ``state`` is the iterator's saved state.
    """
    count, now = state["iterations_in_epoch"], len(iterator.frozen_batches)
    processes = state.get("num_shards", iterator.num_shards)
    # checkpoints of earlier versions and of plain fairseq lack it; another batch size goes unseen
    total = state.get("num_batches", now)
    if (processes, total) == (iterator.num_shards, now):
        return count
    read = round(min(count * processes, total) * now / total)
    position = min(read // iterator.num_shards, len(iterator) - 1)
    logger.info(
        f"the epoch is continued after {position} of {len(iterator)} batches of each of "
        f"{iterator.num_shards} processes; the checkpoint was written after {count} of "
        f"{math.ceil(total / processes)} of each of {processes}."
    )
    return position


def repair_batches_of_resumed_data() -> None:
    """Make a training that is resumed in a later epoch use the same batches as before.

    This concerns tasks that build their batches once, such as fairseq's ``translation``. Tasks that
    build new batches in each epoch, as in this package, are not affected.
    """
    from fairseq.trainer import Trainer

    original = Trainer.get_train_iterator

    @functools.wraps(original)
    def get_train_iterator(self: Any, epoch: int, **kwargs: Any) -> Any:
        # language_modeling and translation keep the batches of the first epoch. Their seed contains
        # the epoch, so a training that is resumed in a later epoch would build other batches
        iterators = self.task.dataset_to_epoch_iter
        before = list(iterators.values())
        iterator = original(self, epoch, **kwargs)
        if epoch == 1 or iterator in before or iterator not in iterators.values():
            return iterator
        del iterators[iterator.dataset]
        iterator = original(self, 1, **{**kwargs, "load_dataset": False})
        iterator.epoch = epoch
        iterator.dataset.set_epoch(epoch)
        return iterator

    Trainer.get_train_iterator = get_train_iterator


def repair_data_workers() -> None:
    """Make data workers end with their epoch, and start no reading thread if there are workers."""
    from fairseq.data.iterators import EpochBatchIterator

    original = EpochBatchIterator._get_iterator_for_epoch

    @functools.wraps(original)
    def get_iterator_for_epoch(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.persistent_workers = self.reuse_dataloader = False
        if self.num_workers == 0:
            return original(self, *args, **kwargs)
        self.buffer_size = 0
        # the workers of a spawned process would be spawned, too, and import everything in each
        # epoch
        if multiprocessing.parent_process() and "fork" in multiprocessing.get_all_start_methods():
            multiprocessing.set_start_method("fork", force=True)
        iterator = original(self, *args, **kwargs)
        if iterator is not None:
            iterator._itr = _read_to_the_end(iterator._itr, iterator.total - iterator.n)
        return iterator

    EpochBatchIterator._get_iterator_for_epoch = get_iterator_for_epoch


def _read_to_the_end(batches: Any, count: int) -> Iterator[Any]:
    for number, batch in enumerate(batches, 1):
        if number == count:
            # PyTorch ends its workers here; fairseq never asks again after the last batch
            next(batches, None)
        yield batch


def repair_overflow_on_cpu() -> None:
    """Repair ``--fp16`` on a CPU, where a training fails as soon as gradients overflow."""
    import torch
    from fairseq.trainer import Trainer

    original = Trainer.train_step

    @functools.wraps(original)
    def train_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.cuda or not self.cfg.common.fp16:
            return original(self, *args, **kwargs)
        # fairseq moves the norm of skipped gradients to a GPU
        with _replaced(torch.Tensor, "cuda", lambda self: self):
            return original(self, *args, **kwargs)

    Trainer.train_step = train_step


def repair_clipping_on_cpu() -> None:
    """Repair ``--cpu`` on a machine with a GPU, where training fails at the first update."""
    import torch
    from fairseq import utils

    original = utils.clip_grad_norm_

    @functools.wraps(original)
    def clip_grad_norm_(params: Any, *args: Any, **kwargs: Any) -> Any:
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        if any(x.is_cuda for x in params) or not torch.cuda.is_available():
            return original(params, *args, **kwargs)
        # fairseq moves the norm of the gradients to the GPU if there is one
        with _replaced(torch.cuda, "is_available", lambda: False):
            return original(params, *args, **kwargs)

    utils.clip_grad_norm_ = clip_grad_norm_


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def save_float32_weights() -> None:
    """Make training in half precision save and load float32 weights and the loss scaler's state.

    Both become parts of the optimizer's state in checkpoints of ``--fp16`` and ``--bf16``. A
    resumed training then gives the same weights, bit for bit, as an uninterrupted training.
    """
    from fairseq.optim import FP16Optimizer
    from fairseq.trainer import Trainer

    save, load = Trainer.state_dict, FP16Optimizer.load_state_dict

    @functools.wraps(save)
    def state_dict(self: Any) -> dict[str, Any]:
        state = save(self)
        added = _read_added_state(self.optimizer)
        if "last_optimizer_state" in state and added:
            state["last_optimizer_state"] = {**state["last_optimizer_state"], _KEY: added}
        return state

    @functools.wraps(load)
    def load_state_dict(
        self: Any, state_dict: dict[str, Any], optimizer_overrides: Any = None
    ) -> None:
        added = state_dict.get(_KEY, {})
        known = {name: value for name, value in state_dict.items() if name != _KEY}
        load(self, known, optimizer_overrides)
        if "weights" in added:
            _load_weights(self, added["weights"])
        if "counters" in added and self.scaler is not None:
            for name in _COUNTERS:
                setattr(self.scaler, name, int(added["counters"][name]))

    Trainer.state_dict = state_dict
    FP16Optimizer.load_state_dict = load_state_dict


def _read_added_state(optimizer: Any) -> dict[str, Any]:
    """Return the float32 weights and the counters of the loss scaler, if there are any."""
    if not hasattr(optimizer, "fp32_params"):
        return {}
    # fairseq saves only the weights in half precision; a resumed training would copy these, with
    # their rounding errors
    state: dict[str, Any] = {"weights": [weight.detach() for _, weight in _pairs(optimizer)]}
    # fairseq saves the loss scale, but not when it last changed
    if optimizer.scaler is not None:
        state["counters"] = {name: getattr(optimizer.scaler, name) for name in _COUNTERS}
    return state


def _pairs(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of a half-precision parameter and its float32 copy, of the same shape."""
    if not optimizer.has_flat_params:
        yield from zip(optimizer.fp16_params, optimizer.fp32_params)
        return
    # the copies of a device's parameters are one flat tensor, without --fp16-no-flatten-grads
    offsets = dict.fromkeys(optimizer.fp32_params, 0)
    for parameter in optimizer.fp16_params:
        device = parameter.device.index
        flat, start = optimizer.fp32_params[device], offsets[device]
        offsets[device] += parameter.numel()
        yield parameter, flat[start : offsets[device]].view_as(parameter)


def _load_weights(optimizer: Any, saved: list[Any]) -> None:
    """Copy float32 tensors of a checkpoint to the optimizer's copies of the weights; a tensor that
    does not round to the model's half-precision weight is ignored."""
    import torch

    pairs = list(_pairs(optimizer))
    unused = len(pairs)
    if len(saved) == len(pairs):
        for (parameter, copy), weight in zip(pairs, saved):
            if weight.dtype != torch.float32 or weight.shape != parameter.shape:
                continue
            weight = weight.to(parameter.device)
            rounded = weight.to(parameter.dtype)
            # the two differ if the checkpoint's weights were averaged, converted or edited.
            # Compared as bits, because NaN is not equal to itself
            if torch.equal(rounded.view(torch.int16), parameter.detach().view(torch.int16)):
                copy.data.copy_(weight)
                unused -= 1
    if unused:
        logger.info(
            f"{unused} of {len(pairs)} float32 weights are made from the checkpoint's weights in "
            "half precision: those in its optimizer state do not round to them, as after an edit "
            "or an average of the weights."
        )
