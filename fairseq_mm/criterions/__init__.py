"""Criterions (``--criterion``) that fairseq does not have."""

from fairseq_mm.criterions import (  # noqa: F401
    chunked_cross_entropy,
    coverage_cross_entropy,
    pairwise_ranking,
    self_critical,
)
