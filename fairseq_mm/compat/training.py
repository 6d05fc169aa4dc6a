"""Repairs trainings: order of the data after a restart, data workers, and gradients."""

import contextlib
import functools
import logging
import math
import queue
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

from fairseq_mm.compat.scope import in_our_trainers, is_ours, names_ours
from fairseq_mm.errors import UserError

logger = logging.getLogger(__name__)

# PyTorch's data loader also waits this long for a worker to end
_MOST_SECONDS_OF_ENDING = 5.0


def mark_iterators() -> None:
    """Make trainers that use this package set an attribute on their data iterators.

    The repairs of fairseq's iterators change only iterators with this attribute, and iterators over
    datasets of this package.
    """
    from fairseq.trainer import Trainer

    def marking(original: Any) -> Any:
        @in_our_trainers(original)
        def get_iterator(self: Any, *args: Any, **kwargs: Any) -> Any:
            iterator = original(self, *args, **kwargs)
            # a model of this package can train on a dataset of fairseq, which does not identify it
            iterator._is_of_our_training = True
            return iterator

        return get_iterator

    Trainer.get_train_iterator = marking(Trainer.get_train_iterator)
    Trainer.get_valid_iterator = marking(Trainer.get_valid_iterator)


def _is_of_our_training(iterator: Any) -> bool:
    return is_ours(iterator.dataset) or hasattr(iterator, "_is_of_our_training")


def repair_position_of_resumed_data() -> None:
    """Make a training resume at the right position within an epoch.

    The number of processes or the batch size may have changed. The fraction of the epoch's data
    that was used before is skipped; at most the batches of one update are used twice.
    """
    from fairseq.data.iterators import EpochBatchIterator

    save, resume = EpochBatchIterator.state_dict, EpochBatchIterator.load_state_dict

    @functools.wraps(save)
    def state_dict(self: Any) -> dict[str, Any]:
        if not _is_of_our_training(self):
            return save(self)
        return {**save(self), "num_batches": len(self.frozen_batches)}

    @functools.wraps(resume)
    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        # fairseq skips in each process as many batches as each process had read: two processes
        # after one skip twice the data, and one process after two repeats half of the data
        if state_dict.get("iterations_in_epoch", 0) and _is_of_our_training(self):
            state_dict = {**state_dict, "iterations_in_epoch": _position(self, state_dict)}
        resume(self, state_dict)

    EpochBatchIterator.state_dict = state_dict
    EpochBatchIterator.load_state_dict = load_state_dict


def add_num_shards(state: dict[str, Any]) -> None:
    """Record the number of processes in a checkpoint, next to the position in the training data.

    The number is read from the checkpoint's options. :func:`repair_position_of_resumed_data` needs
    it if the number of processes has changed.

    Args:
        state: Content of the checkpoint, changed in place.
    """
    position = state.get("extra_state", {}).get("train_iterator")
    cfg: Any = state.get("cfg")
    if position and names_ours(cfg) and "distributed_training" in cfg:
        processes = cfg["distributed_training"]["distributed_world_size"]
        position.setdefault("num_shards", processes // cfg["common"]["model_parallel_size"])


def _position(iterator: Any, state: dict[str, Any]) -> int:
    """Return the number of batches of the epoch that each process must skip when it resumes.

    At least one batch of the epoch is not skipped.

    Args:
        iterator: Data iterator of the resumed training.
        state: State of the data iterator, from the checkpoint.
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

    @in_our_trainers(original)
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


def repair_reused_loaders() -> None:
    """Make fairseq build a new data loader for each epoch.

    fairseq uses the data loader of the first epoch for all epochs. Its workers never end, and with
    ``--curriculum`` it never shuffles the batches.
    """
    from fairseq.data.iterators import EpochBatchIterator

    original = EpochBatchIterator._get_iterator_for_epoch

    @functools.wraps(original)
    def get_iterator_for_epoch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_of_our_training(self):
            self.persistent_workers = self.reuse_dataloader = False
            # without a thread that reads ahead, the garbage collector ends the workers; it waits
            # five seconds for each, because it often collects first the queue that ends a worker
            if self.num_workers > 0:
                self.buffer_size = max(self.buffer_size, 1)
        return original(self, *args, **kwargs)

    EpochBatchIterator._get_iterator_for_epoch = get_iterator_for_epoch


def repair_workers_of_successive_epochs() -> None:
    """Make fairseq fork the workers of an epoch only after the previous epoch's workers have ended.

    Otherwise the new workers inherit locks that the thread of the previous epoch holds, and wait
    for ever. This happened once in some hundred epochs of trainings with several workers on a GPU.
    """
    from fairseq.data.iterators import BufferedIterator

    original = BufferedIterator._create_consumer

    @functools.wraps(original)
    def create_consumer(self: Any) -> None:
        batches = self._iterable
        self._iterable = _Source(batches, self.total, self._queue, weakref.ref(self))
        original(self)
        self._iterable = batches

    BufferedIterator._create_consumer = create_consumer


class _Source:
    """Batches of an epoch, which a thread reads ahead and puts into a queue.

    Iteration starts only when the threads and workers of finished epochs have ended.

    Args:
        batches: Batches of the epoch, such as a data loader.
        length: Number of batches.
        read_ahead: Queue into which the thread puts the batches.
        reader: Weak reference to the iterator that takes batches from the queue.
    """

    reading: ClassVar[set["_Source"]] = set()

    def __init__(
        self, batches: Any, length: int, read_ahead: queue.Queue, reader: weakref.ref
    ) -> None:
        # `reader` takes batches from the queue; with a strong reference it would never be gone
        self.batches, self.length = batches, length
        self.read_ahead, self.reader = read_ahead, reader
        self.has_last = self.is_given_up = False
        self.has_ended = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        for other in list(self.reading):
            other.wait_until_ended()
        self.reading.add(self)
        try:
            for number, batch in enumerate(self.batches, 1):
                self.has_last = number == self.length
                yield batch
                # an epoch that is stopped early, as by --max-valid-steps, leaves its thread waiting
                # without end for space for the next batch, with all of its workers
                if self.is_given_up or self.reader() is None:
                    self._make_room()
                    break
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            raise UserError(
                f"{error}: a worker of --num-workers was killed, as operating systems do where "
                "memory is short; fewer workers need less."
            ) from None
        finally:
            # the loop has released the data loader's iterator, which ends the workers
            self.reading.discard(self)
            self.has_ended.set()

    def wait_until_ended(self) -> None:
        """Wait, for five seconds at most, until the epoch's workers have ended.

        If the training has not yet used all batches of the epoch, return immediately.
        """
        if self.is_given_up or self.reader() is None:
            self._make_room()
        elif not self.has_last or self.read_ahead.full():
            return
        self.has_ended.wait(_MOST_SECONDS_OF_ENDING)

    def _make_room(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self.read_ahead.get_nowait()


def end_workers() -> None:
    """End all data workers that read ahead, for a training that stops within an epoch."""
    for source in list(_Source.reading):
        source.is_given_up = True
        source.wait_until_ended()


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def repair_overflow_on_cpu() -> None:
    """Repair ``--fp16`` on a CPU, where a training fails as soon as gradients overflow."""
    import torch
    from fairseq.trainer import Trainer

    original = Trainer.train_step

    @in_our_trainers(original)
    def train_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.cuda or not self.cfg.common.fp16:
            return original(self, *args, **kwargs)
        # fairseq moves the norm of skipped gradients to a GPU
        with _replaced(torch.Tensor, "cuda", lambda self: self):
            return original(self, *args, **kwargs)

    Trainer.train_step = train_step


def repair_clipping_on_cpu() -> None:
    """Repair ``--cpu`` on a machine with a GPU, where a training fails at the first update."""
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


def seed_only_the_cpu() -> None:
    """Make trainings on a CPU seed the CPU's random numbers at each update, and no others.

    :func:`torch.manual_seed` also stores the seed and a stack trace for a GPU that might be used
    later. This takes 0.8 ms, 7 % of an update of ``vse_bow``.
    """
    import torch
    from fairseq.trainer import Trainer

    original = Trainer._set_seed

    @in_our_trainers(original)
    def _set_seed(self: Any) -> None:
        if self.cuda or self.tpu:
            original(self)
        else:
            torch.default_generator.manual_seed(self.cfg.common.seed + self.get_num_updates())

    Trainer._set_seed = _set_seed


def repair_amp() -> None:
    """Divide the gradients of ``--amp`` by the loss scale once; fairseq does it twice."""
    from fairseq.optim import AMPOptimizer

    def step(self: Any) -> None:
        # before clipping, AMPOptimizer unscales the optimizer inside its wrapper. Stepping the
        # wrapper, which the GradScaler does not know, would unscale again: 1 becomes 1/128
        self.scaler.step(self.optimizer)
        self.scaler.update()

    AMPOptimizer.step = step


class _RecordingScaler:
    """Substitute for a ``GradScaler`` that only records the optimizers it is called with."""

    unscaled: Any = None
    stepped: Any = None

    def unscale_(self, optimizer: Any) -> None:
        self.unscaled = optimizer

    def step(self, optimizer: Any) -> None:
        self.stepped = optimizer

    def update(self) -> None:
        pass


def unscales_another_than_it_steps() -> bool:
    import torch
    from fairseq.optim import AMPOptimizer

    wrapper = types.SimpleNamespace(
        optimizer=object(), clip_grad_norm=lambda *arguments: torch.zeros(())
    )
    optimizer = object.__new__(AMPOptimizer)
    optimizer.fp32_optimizer, optimizer._grad_scaler = wrapper, _RecordingScaler()
    optimizer.clip_grad_norm(0.0)
    optimizer.step()
    scaler = optimizer._grad_scaler
    return scaler.unscaled is not scaler.stepped
