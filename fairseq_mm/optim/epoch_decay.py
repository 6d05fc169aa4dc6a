"""Multiplies the learning rate by a factor every few epochs (``--lr-scheduler epoch_decay``).

Yu et al. 2021 (VG-BART), section 4.2, multiply the learning rate by 0.95 every 10 epochs.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, List

from fairseq.dataclass import FairseqDataclass
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from fairseq_mm.compat.options import check_sizes, option


@dataclass
class EpochDecayConfig(FairseqDataclass):
    decay_factor: float = option(0.95, "Factor that the learning rate is multiplied by.", above=0)
    decay_epochs: int = option(
        10, "Number of epochs after which the factor is applied again.", least=1
    )
    warmup_updates: int = option(
        0, "Number of first updates over which the learning rate rises linearly.", least=0
    )
    # fairseq builds a command-line parser from these types, and it does not support `list[float]`
    lr: List[float] = II("optimization.lr")  # noqa: UP006, RUF009


@register_lr_scheduler("epoch_decay", dataclass=EpochDecayConfig)
class EpochDecay(FairseqLRScheduler):
    """Scheduler that lowers the learning rate every ``decay_epochs`` epochs.

    In epoch e, counted from 1, the rate is ``lr * decay_factor ** ((e - 1) // decay_epochs)``. The
    scheduler has no state to save: fairseq calls :meth:`step_begin_epoch` before the first update
    of an epoch, also in a resumed run.
    """

    def __init__(self, cfg: EpochDecayConfig, optimizer: Any) -> None:
        super().__init__(cfg, optimizer)
        check_sizes(EpochDecayConfig, cfg)
        # fairseq allows one rate per epoch; this schedule starts from the first.
        self.base_lr = cfg.lr[0] if isinstance(cfg.lr, Collection) else cfg.lr
        self.epoch = 1
        self.num_updates = 0
        self.step_update(0)

    def step_begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        # fairseq calls this at the beginning of an epoch, when warm-up may still be in progress.
        self.step_update(self.num_updates)

    def step_update(self, num_updates: int) -> float:
        """Set and return the learning rate of the next update, after ``num_updates`` updates."""
        self.num_updates = num_updates
        lr = self.base_lr * self.cfg.decay_factor ** ((self.epoch - 1) // self.cfg.decay_epochs)
        if num_updates < self.cfg.warmup_updates:
            lr *= (num_updates + 1) / self.cfg.warmup_updates
        self.optimizer.set_lr(lr)
        return lr

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load only the best validation score, ``best``, of the state of any scheduler."""
        # Nothing else is needed, because the learning rate depends only on the epoch and the number
        # of updates.
        self.best = state_dict.get("best")
