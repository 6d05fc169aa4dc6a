"""Optimizers (``--optimizer``) and learning rate schedulers (``--lr-scheduler``)."""

from fairseq_mm.optim import adam_l2, adam_parameter_groups, epoch_decay

__all__ = ["adam_l2", "adam_parameter_groups", "epoch_decay"]
