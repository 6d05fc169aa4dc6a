"""Computes cross-entropy plus coverage loss (``--criterion coverage_cross_entropy``).

See et al. 2017 (https://arxiv.org/abs/1704.04368), equations 12 and 13: the loss of the word w_t is

    -log P(w_t) + lambda sum_i min(a_ti, c_ti),    c_t = a_1 + ... + a_(t-1)

where a_ti is the attention weight of source word i at step t. The criterion trains models whose
forward pass returns the sum over i as ``coverage_loss`` [B, T]: the pointer-generator with
``--coverage``. ``nll_loss`` and the perplexity do not include this term. The paper adds coverage
only for the last part of the training.
"""

from dataclasses import dataclass
from typing import Any

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor

from fairseq_mm.compat.options import option
from fairseq_mm.errors import UserError


@dataclass
class CoverageCrossEntropyConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """Options of the criterion; the default weight is lambda in See et al. 2017."""

    coverage_weight: float = option(
        1.0, "Weight of the coverage loss: lambda in See et al. 2017, equation 13."
    )


@register_criterion("coverage_cross_entropy", dataclass=CoverageCrossEntropyConfig)
class CoverageCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """Label-smoothed cross-entropy plus ``coverage_weight`` times the coverage loss."""

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        *,
        coverage_weight: float = 1.0,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.coverage_weight = coverage_weight

    def compute_loss(
        self,
        model: Any,
        net_output: tuple[Tensor, Any],
        sample: dict[str, Any],
        reduce: bool = True,
    ) -> tuple[Tensor, Tensor]:
        loss, nll_loss = super().compute_loss(model, net_output, sample, reduce)
        coverage = (net_output[1] or {}).get("coverage_loss")
        if coverage is None:
            raise UserError(
                "--criterion coverage_cross_entropy is for models with a coverage loss: "
                "pointer_generator with --coverage."
            )
        is_padding = model.get_targets(sample, net_output).eq(self.padding_idx)
        # The loss of fairseq leaves out padding and a forced prefix, so the coverage must, too.
        coverage = coverage.masked_fill(is_padding, 0.0)[:, self.ignore_prefix_size :]
        if reduce:
            return loss + self.coverage_weight * coverage.sum(), nll_loss
        return loss + self.coverage_weight * coverage.reshape_as(loss), nll_loss
