"""Chooses among samples of a model by minimum Bayes risk (option ``mbr`` of generation)."""

import dataclasses
from collections.abc import Sequence

from fairseq_mm.inference.hypothesis import Hypothesis
from fairseq_mm.metrics.expected_utility import expected_utilities


def rank_by_utility(hypotheses: Sequence[Hypothesis], utility: str) -> list[Hypothesis]:
    """Sort the samples of one input by their expected utility, the highest first.

    If utilities are equal, the sample with the higher score comes first.

    Args:
        hypotheses: Samples of one input, two or more.
        utility: Name of the utility, see :func:`.expected_utilities`.
    """
    values = expected_utilities([hypothesis.text for hypothesis in hypotheses], utility)
    rated = [
        dataclasses.replace(hypothesis, utility=float(value))
        for hypothesis, value in zip(hypotheses, values)
    ]
    # rounded: equal sums may differ in their last bits
    return sorted(rated, key=lambda x: (-round(x.utility or 0.0, 9), -x.score))
