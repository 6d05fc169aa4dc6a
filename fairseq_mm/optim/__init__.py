"""``--optimizer`` and ``--lr-scheduler`` of this package."""

from fairseq_mm.optim import adam_by_origin, adam_l2, epoch_decay

__all__ = ["adam_by_origin", "adam_l2", "epoch_decay"]
