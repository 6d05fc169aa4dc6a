"""Repairs of fairseq's training: its data, of a resumed one too, and the gradients of ``--amp``."""

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

_MOST_SECONDS_OF_ENDING = 5.0


def mark_iterators() -> None:
    """fairseq's iterators know their data set, but not which training they belong to.

    A model of this package can train under a task of fairseq, on data sets of fairseq. Goes with
    the repairs of iterators.
    """
    from fairseq.trainer import Trainer

    def marking(original: Any) -> Any:
        @in_our_trainers(original)
        def get_iterator(self: Any, *args: Any, **kwargs: Any) -> Any:
            iterator = original(self, *args, **kwargs)
            iterator._is_of_our_training = True
            return iterator

        return get_iterator

    Trainer.get_train_iterator = marking(Trainer.get_train_iterator)
    Trainer.get_valid_iterator = marking(Trainer.get_valid_iterator)


def _is_of_our_training(iterator: Any) -> bool:
    return is_ours(iterator.dataset) or hasattr(iterator, "_is_of_our_training")


def repair_position_of_resumed_data() -> None:
    """A training that is continued by another number of processes, or with batches of another size,
    skips or repeats training data.

    A checkpoint within an epoch has the number of batches that each process had read, and fairseq
    skips as many of each process, however many processes there are now: after one process, two
    leave out twice what was read; after two, one reads half of it again. The recipes divide the
    batch by the number of processes, so that the epoch has another number of batches, too: it is
    continued where the same share of them was read. Where the batches of all processes are no
    multiple of the number of processes now, up to one update's batches are read again. Goes when
    the position counts the batches of all processes, and the examples in them.
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
        if state_dict.get("iterations_in_epoch", 0) and _is_of_our_training(self):
            state_dict = {**state_dict, "iterations_in_epoch": _position(self, state_dict)}
        resume(self, state_dict)

    EpochBatchIterator.state_dict = state_dict
    EpochBatchIterator.load_state_dict = load_state_dict


def add_num_shards(state: dict[str, Any]) -> None:
    """Add the number of processes that wrote a checkpoint to its position in the data."""
    position = state.get("extra_state", {}).get("train_iterator")
    cfg: Any = state.get("cfg")
    if position and names_ours(cfg) and "distributed_training" in cfg:
        processes = cfg["distributed_training"]["distributed_world_size"]
        position.setdefault("num_shards", processes // cfg["common"]["model_parallel_size"])


def _position(iterator: Any, state: dict[str, Any]) -> int:
    """The number of batches that each process skips now, less than it has in the epoch.

    Args:
        iterator: of the epoch, as it is divided now.
        state: of the iterator when the checkpoint was written; one of earlier versions and of
            fairseq alone has no ``num_batches``, and batches of another size are not seen.
    """
    count, now = state["iterations_in_epoch"], len(iterator.frozen_batches)
    processes = state.get("num_shards", iterator.num_shards)
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
    """A training that is resumed after its first epoch trains on other batches.

    Batches of the tasks ``language_modeling`` and ``translation`` are made in the first epoch and
    kept for all. But which examples of a length share a batch is drawn with a seed that has the
    epoch in it, with ``--update-ordered-indices-seed`` in stock fairseq 0.12.2 too, and a resumed
    training makes them in a later one. Here it makes those of the first epoch. Batches that a task
    makes anew for each epoch, as this plugin's tasks do, stay. Goes when the seed of batches that
    are kept has no epoch in it.
    """
    from fairseq.trainer import Trainer

    original = Trainer.get_train_iterator

    @in_our_trainers(original)
    def get_train_iterator(self: Any, epoch: int, **kwargs: Any) -> Any:
        kept = self.task.dataset_to_epoch_iter
        before = list(kept.values())
        iterator = original(self, epoch, **kwargs)
        if epoch == 1 or iterator in before or iterator not in kept.values():
            return iterator
        del kept[iterator.dataset]
        iterator = original(self, 1, **{**kwargs, "load_dataset": False})
        iterator.epoch = epoch
        iterator.dataset.set_epoch(epoch)
        return iterator

    Trainer.get_train_iterator = get_train_iterator


def repair_reused_loaders() -> None:
    """A data loader that is kept for the next epoch keeps its workers, and whether it shuffles.

    Nothing ends the workers. Their number doubles where validation has workers too, an iterator
    that is made for one epoch leaves its workers to the collector of cycles, and the collector
    waits five seconds for each of them: the queue that would tell a worker to end is often
    collected before; so it is with ``--data-buffer-size 0``, which reads one batch ahead here. And
    with ``--curriculum``, batches are never shuffled, but for a training that is resumed. Goes when
    fairseq ends workers with the training, and shuffles as it is asked to.
    """
    from fairseq.data.iterators import EpochBatchIterator

    original = EpochBatchIterator._get_iterator_for_epoch

    @functools.wraps(original)
    def get_iterator_for_epoch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_of_our_training(self):
            self.persistent_workers = self.reuse_dataloader = False
            if self.num_workers > 0:
                self.buffer_size = max(self.buffer_size, 1)
        return original(self, *args, **kwargs)

    EpochBatchIterator._get_iterator_for_epoch = get_iterator_for_epoch


def repair_workers_of_successive_epochs() -> None:
    """The workers of an epoch are forked while those of the epoch before are still being ended.

    A thread reads the data of an epoch ahead, and ends the workers when it has read the last batch.
    The next epoch begins as soon as that batch was trained on: its thread then forks workers beside
    the first, which may hold locks that a forked process inherits and waits for without end.
    Trainings with several workers on a GPU stopped for ever in one of some hundred epochs. And the
    thread of an epoch that is given up, as ``--max-valid-steps`` does, waits for ever for room for
    its next batch, with all of its workers. Here the workers are forked when those that have
    nothing more to read, or are read no longer, have ended. Goes when fairseq waits for them.
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
    """The batches of an epoch, as a thread reads them ahead.

    Args:
        batches: of a data loader.
        length: number of the last batch.
        read_ahead: that the thread puts them into.
        reader: who takes them from there, if anybody does.
    """

    reading: ClassVar[set["_Source"]] = set()

    def __init__(
        self, batches: Any, length: int, read_ahead: queue.Queue, reader: weakref.ref
    ) -> None:
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
            # the loop has let go of the data loader's iterator, which ends the workers
            self.reading.discard(self)
            self.has_ended.set()

    def wait_until_ended(self) -> None:
        """Returns at once where the epoch goes on."""
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
    """End the workers that read data ahead: the training stops within an epoch."""
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
    """Gradients that overflow in float16 end a training on the CPU: fairseq puts the norm of those
    that it skips on a GPU. Goes when it takes the trainer's device."""
    import torch
    from fairseq.trainer import Trainer

    original = Trainer.train_step

    @in_our_trainers(original)
    def train_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.cuda or not self.cfg.common.fp16:
            return original(self, *args, **kwargs)
        with _replaced(torch.Tensor, "cuda", lambda self: self):
            return original(self, *args, **kwargs)

    Trainer.train_step = train_step


def repair_clipping_on_cpu() -> None:
    """``--cpu`` on a machine with a GPU ends at the first update: fairseq puts the norm of the
    gradients on the GPU wherever there is one. Goes when it takes the gradients' device."""
    import torch
    from fairseq import utils

    original = utils.clip_grad_norm_

    @functools.wraps(original)
    def clip_grad_norm_(params: Any, *args: Any, **kwargs: Any) -> Any:
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        if any(x.is_cuda for x in params) or not torch.cuda.is_available():
            return original(params, *args, **kwargs)
        with _replaced(torch.cuda, "is_available", lambda: False):
            return original(params, *args, **kwargs)

    utils.clip_grad_norm_ = clip_grad_norm_


def repair_amp() -> None:
    """``--amp`` divides gradients by the loss scale twice.

    Before it clips, ``AMPOptimizer`` unscales the gradients of the optimizer within its fairseq
    wrapper, and then steps the wrapper, whose gradients its ``GradScaler`` has not seen, and
    unscales once more. A gradient of 1 arrives as 1/128 at the first scale. Goes when both take
    the same object.
    """
    from fairseq.optim import AMPOptimizer

    def step(self: Any) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()

    AMPOptimizer.step = step


class _RecordingScaler:
    """Stands in for a ``GradScaler`` and keeps what it is to unscale and to step."""

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
