"""Cross-entropy for large vocabularies (``--criterion chunked_cross_entropy``).

The loss, gradients and log equal fairseq's ``cross_entropy`` and, with ``--label-smoothing``, its
``label_smoothed_cross_entropy``. The logits of all tokens are never in memory at once, see
``modules/chunked_cross_entropy.py``.

The criterion trains every model whose logits are ``F.linear`` of the input of its decoder's
``output_layer``, see ``_linear_output.py``. A model that does anything else with its logits is
refused.
"""

import weakref
from dataclasses import dataclass
from typing import Any

from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from omegaconf import II
from torch import Tensor, nn

from fairseq_mm.compat.options import check_sizes, option
from fairseq_mm.criterions._linear_output import (
    Linear,
    NonlinearOutputError,
    check_probabilities,
    run_on_features,
    unwrap,
)
from fairseq_mm.errors import UserError
from fairseq_mm.modules.chunked_cross_entropy import CHUNK_BYTES, chunked_cross_entropy

MEGABYTE = 2**20


@dataclass
class ChunkedCrossEntropyConfig(FairseqDataclass):
    label_smoothing: float = option(
        0.0, "Epsilon of label smoothing; 0 for no smoothing.", least=0, below=1
    )
    chunk_megabytes: int = option(
        CHUNK_BYTES // MEGABYTE,
        "Maximum memory for the logits that are held at once, in MiB.",
        least=1,
    )
    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("chunked_cross_entropy", dataclass=ChunkedCrossEntropyConfig)
class ChunkedCrossEntropyCriterion(FairseqCriterion):
    """Cross-entropy that never holds the logits of all tokens in memory.

    ``label_smoothing`` is fairseq's epsilon, which smooths over all types except the target.
    """

    def __init__(
        self, task: Any, sentence_avg: bool, label_smoothing: float, chunk_megabytes: int
    ) -> None:
        super().__init__(task)
        self.sentence_avg = sentence_avg
        self.label_smoothing = label_smoothing
        self.chunk_megabytes = chunk_megabytes
        check_sizes(ChunkedCrossEntropyConfig, self)
        self.chunk_bytes = chunk_megabytes * MEGABYTE
        # Weak, so that the criterion does not keep a model alive.
        self.checked: weakref.WeakSet = weakref.WeakSet()

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        module = unwrap(model, "chunked_cross_entropy")

        def compute(net_output: Any, linear: Linear) -> tuple[Tensor, Tensor]:
            return self._losses(module, sample, net_output, linear)

        try:
            loss, nll = run_on_features(model, module, sample["net_input"], compute)
        except NonlinearOutputError as error:
            raise UserError(
                "--criterion chunked_cross_entropy needs a model with a linear output layer, but "
                f"is given {type(module).__name__}: {error}. Use --criterion cross_entropy or the "
                "model's own."
            ) from None
        target = sample["target"]
        sample_size = target.size(0) if self.sentence_avg else sample["ntokens"]
        logging_output = {
            "loss": loss.data,
            "nll_loss": nll.data,
            "ntokens": sample["ntokens"],
            "nsentences": target.size(0),
            "sample_size": sample_size,
        }
        return loss, sample_size, logging_output

    def _losses(
        self, module: BaseFairseqModel, sample: dict[str, Any], net_output: Any, linear: Linear
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of the loss and of the negative log-likelihood over the target tokens."""
        if module not in self.checked:
            check_probabilities(module, net_output, linear)
            self.checked.add(module)
        features = net_output[0]
        V = len(linear.weight)
        target = module.get_targets(sample, net_output)
        # fairseq's datasets count the targets without padding
        num_valid = sample["ntokens"]
        return chunked_cross_entropy(
            features.flatten(0, -2),
            linear.weight,
            linear.bias,
            target.flatten(),
            ignore_index=self.padding_idx,
            # fairseq spreads epsilon over all types except the target, PyTorch over all types
            label_smoothing=self.label_smoothing * V / (V - 1) if V > 1 else 0.0,
            chunk_bytes=self.chunk_bytes,
            num_valid=num_valid if isinstance(num_valid, int) else None,
        )

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        LabelSmoothedCrossEntropyCriterion.reduce_metrics(logging_outputs)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


@dataclass
class SlicedCrossEntropyConfig(ChunkedCrossEntropyConfig):
    slice_megabytes: int = option(CHUNK_BYTES // MEGABYTE, "The old name of --chunk-megabytes.")


@register_criterion("sliced_cross_entropy", dataclass=SlicedCrossEntropyConfig)
class SlicedCrossEntropyCriterion(ChunkedCrossEntropyCriterion):
    """The same criterion under the name, and with the option, of checkpoints from before 0.2.0."""

    def __init__(
        self, task: Any, sentence_avg: bool, label_smoothing: float, slice_megabytes: int
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, slice_megabytes)
