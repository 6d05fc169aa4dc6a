"""``--optimizer`` and ``--lr-scheduler``: how a pretrained model with new parts is trained."""

from fairseq_mm.optim import adam_by_origin, epoch_decay

__all__ = ["adam_by_origin", "epoch_decay"]
