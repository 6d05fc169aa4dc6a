"""``--optimizer`` and ``--lr-scheduler`` of this package."""

from fairseq_mm.optim import adam_l2, adam_parameter_groups, epoch_decay

__all__ = ["adam_l2", "adam_parameter_groups", "epoch_decay"]
