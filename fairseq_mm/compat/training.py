"""Repairs of fairseq's training: the position of a resumed one."""

import functools
import logging
from typing import Any

logger = logging.getLogger(__name__)


def repair_position_of_resumed_data() -> None:
    """A training that is continued by another number of processes skips or repeats training data.

    A checkpoint within an epoch has the number of batches that each process had read, and fairseq
    skips as many of each process, however many processes there are now: after one process, two
    leave out twice what was read; after two, one reads half of it again. Where the batches of all
    processes are no multiple of the number of processes now, up to one update's batches are read
    again. Goes when the position counts the batches of all processes.
    """
    from fairseq import checkpoint_utils
    from fairseq.data.iterators import EpochBatchIterator

    load, resume = checkpoint_utils.load_checkpoint_to_cpu, EpochBatchIterator.load_state_dict

    @functools.wraps(load)
    def load_checkpoint_to_cpu(*args: Any, **kwargs: Any) -> Any:
        state = load(*args, **kwargs)
        position = state.get("extra_state", {}).get("train_iterator")
        cfg = state.get("cfg")
        if position and cfg and "distributed_training" in cfg:
            processes = cfg["distributed_training"]["distributed_world_size"]
            position.setdefault("num_shards", processes // cfg["common"]["model_parallel_size"])
        return state

    @functools.wraps(resume)
    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        before, count = state_dict.get("num_shards"), state_dict.get("iterations_in_epoch", 0)
        if before and count and before != self.num_shards:
            state_dict = {**state_dict, "iterations_in_epoch": count * before // self.num_shards}
            logger.info(
                f"{before} processes had read {count} batches each; {self.num_shards} continue "
                f"after {state_dict['iterations_in_epoch']}."
            )
        resume(self, state_dict)

    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
    EpochBatchIterator.load_state_dict = load_state_dict
