"""``--criterion``: losses that fairseq does not have."""

from fairseq_mm.criterions import (  # noqa: F401
    coverage_cross_entropy,
    pairwise_ranking,
    sliced_cross_entropy,
)
