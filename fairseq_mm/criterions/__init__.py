"""``--criterion``: losses that fairseq does not have."""

from fairseq_mm.criterions import sliced_cross_entropy  # noqa: F401
