"""Cross-entropy with unlikelihood of repetitions (``--criterion unlikelihood``).

Welleck, Kulikov, Roller, Dinan, Cho, Weston. Neural Text Generation with Unlikelihood Training.
ICLR 2020. https://arxiv.org/abs/1908.04319

Token level (equations 4 and 5): the loss of a step is the cross-entropy of its target plus
``unlikelihood_weight`` times the unlikelihood of the preceding tokens of the same text.

Sequence level (equation 6): for a fraction of the updates, ``sequence_fraction``, the model
generates the texts of the batch itself, by greedy search or sampling. The loss of such an update
has no cross-entropy; it is the unlikelihood of each generated token that belongs to an n-gram that
occurred before in its text.

With ``--contrastive-weight``, an update at token level also makes each text more likely under its
own source than under the source of another text of the batch, x': its loss has the term

    - log sigmoid(log p(text | x) - log p(text | x'))

This term makes a model follow its source; with cross-entropy alone, a model may learn to write the
most frequent sentences. The term is not in the paper above; compare Dai, Lin. Contrastive Learning
for Image Captioning. NeurIPS 2017, https://arxiv.org/abs/1710.02534, who contrast with a reference
model.

Differs from the paper:
- A text is generated from its source (images, prompt, video) and not from the beginning of a text,
  and it is at most as long as the longest target of the batch, or as the task's constraints allow.
- Label smoothing can be added to the cross-entropy.

Models whose logits are a linear map of the decoder's features never hold the logits of all tokens
in memory; other models, such as ``pointer_generator``, compute all log-probabilities.
"""

import math
import weakref
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import torch
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.logging import metrics
from torch import Tensor, nn

from fairseq_mm.criterions._linear_output import (
    Linear,
    NonlinearOutputError,
    check_probabilities,
    run_on_features,
    unwrap,
)
from fairseq_mm.criterions.chunked_cross_entropy import (
    MEGABYTE,
    ChunkedCrossEntropyConfig,
    check_options,
)
from fairseq_mm.errors import UserError
from fairseq_mm.modules.evaluation_mode import evaluation_mode
from fairseq_mm.modules.unlikelihood import (
    StepLosses,
    repeated_ngrams,
    step_losses,
    step_losses_of_log_probs,
)

# mixed into the seed of an update, so that the choice of its level does not repeat other numbers
_LEVEL_STREAM = 1908_04319
# logged sums of the token level, then of the sequence level
_LEVEL_SUMS = (
    *("nll_loss", "unlikelihood", "contrast", "target_tokens"),
    *("generated_tokens", "repeated_tokens"),
)


@dataclass
class UnlikelihoodConfig(ChunkedCrossEntropyConfig):
    """Options of the criterion, with the weight and n-gram size of Welleck et al. 2020."""

    unlikelihood_weight: float = field(
        default=1.0,
        metadata={
            "help": "Weight of the unlikelihood of preceding tokens: alpha in Welleck et al. 2020, "
            "equation 5."
        },
    )
    sequence_fraction: float = field(
        default=0.0,
        metadata={
            "help": "Fraction of the updates, 0 to 1, that penalize n-grams repeated in texts that "
            "the model generates; 0.5 in Welleck et al. 2020."
        },
    )
    sequence_ngram: int = field(
        default=4, metadata={"help": "Length of the n-grams that must not be repeated."}
    )
    sequence_sampling: bool = field(
        default=False,
        metadata={"help": "Sample the texts of --sequence-fraction instead of greedy search."},
    )
    contrastive_weight: float = field(
        default=0.0,
        metadata={
            "help": "Weight of the loss that makes a text more likely under its own source than "
            "under the source of another text of the batch."
        },
    )


@register_criterion("unlikelihood", dataclass=UnlikelihoodConfig)
class UnlikelihoodCriterion(FairseqCriterion):
    """Cross-entropy plus unlikelihood of preceding tokens, or unlikelihood of generated texts.

    At sequence level, only generated tokens that repeat an n-gram have a loss. The arguments are
    explained in :class:`UnlikelihoodConfig`.
    """

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        unlikelihood_weight: float,
        sequence_fraction: float,
        sequence_ngram: int,
        sequence_sampling: bool,
        contrastive_weight: float,
        label_smoothing: float,
        chunk_megabytes: int,
    ) -> None:
        super().__init__(task)
        weights = {"unlikelihood": unlikelihood_weight, "contrastive": contrastive_weight}
        for name, weight in weights.items():
            if not 0 <= weight < math.inf:
                raise UserError(f"--{name}-weight must be 0 or more and finite, but is {weight}.")
        if not 0 <= sequence_fraction <= 1:
            raise UserError(f"--sequence-fraction must be from 0 to 1, but is {sequence_fraction}.")
        if sequence_ngram < 1:
            raise UserError(f"--sequence-ngram must be 1 or more, but is {sequence_ngram}.")
        if sequence_sampling and not sequence_fraction:
            raise UserError("--sequence-sampling needs --sequence-fraction above 0.")
        check_options(label_smoothing, chunk_megabytes)
        self.task = task
        self.sentence_avg = sentence_avg
        self.unlikelihood_weight = unlikelihood_weight
        self.sequence_fraction = sequence_fraction
        self.sequence_ngram = sequence_ngram
        self.sequence_sampling = sequence_sampling
        self.contrastive_weight = contrastive_weight
        self.label_smoothing = label_smoothing
        self.chunk_bytes = chunk_megabytes * MEGABYTE
        # model -> True if its logits are a linear map; weak, so that no model is kept alive
        self.is_linear: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        # a tuple, because the generator is a Module, whose weights would become the criterion's
        self._generator: tuple[Any, Any] = (None, None)

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Compute the loss summed over tokens, the divisor of gradients, and sums for the log.

        ``model`` may be wrapped for several processes, as by DistributedDataParallel. ``sample`` is
        a batch as fairseq's datasets collate it. ``reduce`` must be True.

        Raises:
            ValueError: if ``reduce`` is False.
        """
        if not reduce:
            raise ValueError("`reduce` must be True: unlikelihood sums over tokens.")
        module = unwrap(model, "unlikelihood", generates=self.sequence_fraction > 0)
        if model.training and self.is_sequence_update():
            return self._sequence_level(model, module, sample)
        target = sample["target"]
        losses = self._step_losses(model, module, sample)
        nll, unlikelihood = losses.nll.sum(), losses.unlikelihood.sum()
        loss = nll + self.unlikelihood_weight * unlikelihood
        if self.label_smoothing:
            V = len(self.task.target_dictionary)
            # as fairseq, which spreads epsilon over all types except the target
            share = self.label_smoothing / (V - 1)
            loss = loss - (self.label_smoothing + share) * nll + share * V * losses.smooth.sum()
        contrast = loss.new_zeros(())
        if self.contrastive_weight and model.training:
            contrast = self._contrast(model, module, sample, losses.nll)
            loss = loss + self.contrastive_weight * contrast
        sample_size = target.size(0) if self.sentence_avg else sample["ntokens"]
        logging_output = self._log(loss, sample_size, sample)
        logging_output["nll_loss"] = nll.data
        logging_output["unlikelihood"] = unlikelihood.data
        logging_output["contrast"] = contrast.data
        logging_output["target_tokens"] = sample["ntokens"]
        return loss, sample_size, logging_output

    def _contrast(
        self, model: nn.Module, module: Any, sample: dict[str, Any], nll: Tensor
    ) -> Tensor:
        """Return the contrastive loss, summed over the texts.

        ``nll`` has the negative log-probability of each token that is not padding, under the texts'
        own sources.
        """
        target = sample["target"]
        own = _source(module, sample, "contrastive-weight")
        B = target.size(0)
        # the source of the next text of the batch
        other = {k: v.roll(-1, dims=0) if torch.is_tensor(v) else v for k, v in own.items()}
        is_equal = torch.ones(B, dtype=torch.bool, device=target.device)
        for key, value in own.items():
            if torch.is_tensor(value) and value.dim() > 1:
                is_equal &= value.eq(other[key]).flatten(1).all(dim=1)
        net_input = {**sample["net_input"], **other}
        swapped = self._step_losses(model, module, {**sample, "net_input": net_input})
        text = target.ne(self.padding_idx).nonzero()[:, 0]
        margin = nll.new_zeros(B).index_add(0, text, swapped.nll - nll)
        return -nn.functional.logsigmoid(margin).masked_fill(is_equal, 0).sum()

    def is_sequence_update(self) -> bool:
        """Return True if the current update is at sequence level.

        fairseq's trainer sets PyTorch's seed before every update. The choice is therefore the same
        in all processes and in a resumed training.
        """
        if self.sequence_fraction in (0, 1):
            return bool(self.sequence_fraction)
        seed = torch.initial_seed() % 2**64
        return np.random.default_rng([seed, _LEVEL_STREAM]).random() < self.sequence_fraction

    def _sequence_level(
        self, model: nn.Module, module: Any, sample: dict[str, Any]
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Compute the loss of texts that the model generates from the sources of the batch."""
        tokens = self._generate(module, sample)
        end = self.task.target_dictionary.eos()
        previous = tokens.roll(1, dims=1)
        start = getattr(self.task, "start_index", None)
        previous[:, 0] = end if start is None else start
        repeated = repeated_ngrams(tokens, self.sequence_ngram, self.padding_idx)
        net_input = {**sample["net_input"], "prev_output_tokens": previous}
        generated = {**sample, "net_input": net_input, "target": tokens}
        losses = self._step_losses(model, module, generated, repeated)
        loss = losses.unlikelihood.sum()
        count = int(tokens.ne(self.padding_idx).sum())
        sample_size = tokens.size(0) if self.sentence_avg else count
        logging_output = self._log(loss, sample_size, sample)
        logging_output["generated_tokens"] = count
        logging_output["repeated_tokens"] = repeated.sum().data
        return loss, sample_size, logging_output

    def _log(self, loss: Tensor, sample_size: int, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the sums to log.

        An update trains on tokens or on sequences. The sums of the other are 0, because fairseq
        adds the same keys of all batches and processes.
        """
        return {
            "loss": loss.data,
            **dict.fromkeys(_LEVEL_SUMS, 0),
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "sample_size": sample_size,
        }

    def _step_losses(
        self,
        model: nn.Module,
        module: Any,
        sample: dict[str, Any],
        negatives: Optional[Tensor] = None,
    ) -> StepLosses:
        """Run the model and compute the losses of all steps, see :func:`.step_losses`."""
        net_input = sample["net_input"]
        options: dict[str, Any] = {"padding_idx": self.padding_idx, "negatives": negatives}
        if self.is_linear.get(module, True):

            def compute(net_output: Any, linear: Linear) -> StepLosses:
                if module not in self.is_linear:
                    check_probabilities(module, net_output, linear)
                    self.is_linear[module] = True
                target = module.get_targets(sample, net_output)
                weight, bias = linear
                return step_losses(
                    net_output[0], weight, bias, target, **options, chunk_bytes=self.chunk_bytes
                )

            is_known = module in self.is_linear
            try:
                return run_on_features(model, module, net_input, compute)
            except (NonlinearOutputError, RuntimeError) as error:
                # A forward pass that computes with its logits may fail when it gets the features.
                # fairseq skips a batch for which memory does not suffice.
                if is_known or "out of memory" in str(error):
                    raise
            self.is_linear[module] = False
        net_output = model(**net_input)
        log_probs = module.get_normalized_probs(net_output, log_probs=True, sample=sample)
        target = module.get_targets(sample, net_output)
        return step_losses_of_log_probs(log_probs, target, **options)

    def _generate(self, module: Any, sample: dict[str, Any]) -> Tensor:
        """Return texts [B, T], right-padded, that the model generates from the batch's sources.

        Raises UserError if the model is a language model, which has no source.
        """
        inputs = _source(module, sample, "sequence-fraction")
        # fairseq's generator sets this mode, too, and leaves it
        with evaluation_mode(module):
            if self._generator[0] is not module:
                self._generator = module, self._build_generator(module)
            generator = self._generator[1]
            generator.max_len_b = max(1, sample["target"].size(1) - 1)
            search = getattr(generator.search, "search", generator.search)
            # another sample of a text at each update
            search.seed = torch.initial_seed() % 2**64
            hypotheses = self.task.inference_step(
                generator, [module], {**sample, "net_input": inputs}
            )
        texts = [best["tokens"] for best, *_ in hypotheses]
        return nn.utils.rnn.pad_sequence(
            texts, batch_first=True, padding_value=self.padding_idx
        ).to(sample["target"])

    def _build_generator(self, module: Any) -> Any:
        options = {
            **getattr(self.task, "generation_defaults", {}),
            **{"beam": 1, "nbest": 1, "sampling": self.sequence_sampling},
            # repetitions must be possible, and a text may be shorter than published ones
            **{"no_repeat_ngram_size": 0, "min_len": 1, "max_len_a": 0},
        }
        return self.task.build_generator([module], Namespace(**options))

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the loss and its terms; terms that no batch has are left out.

        ``loss`` and ``nll_loss`` are in bits, as in fairseq, and ``ppl`` is the perplexity;
        ``unlikelihood`` is in nats per token. ``repeated`` is the share of tokens of generated
        texts that repeat an n-gram.
        """
        total = {key: sum(log.get(key, 0) for log in logging_outputs) for key in logging_outputs[0]}
        size = total["sample_size"]
        metrics.log_scalar("loss", total["loss"] / size / math.log(2), size, round=3)
        count = total["target_tokens"]
        if count > 0:
            metrics.log_scalar("nll_loss", total["nll_loss"] / count / math.log(2), count, round=3)
            metrics.log_scalar("unlikelihood", total["unlikelihood"] / count, count, round=3)
            if total["contrast"] > 0:
                metrics.log_scalar("contrast", total["contrast"] / count, count, round=4)
            metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))
        count = total["generated_tokens"]
        if count > 0:
            metrics.log_scalar("repeated", total["repeated_tokens"] / count, count, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def _source(module: nn.Module, sample: dict[str, Any], option: str) -> dict[str, Any]:
    """Return the inputs of a batch without the texts.

    Raises UserError with the name of the option if ``module`` is a language model without inputs.
    """
    inputs = {k: v for k, v in sample["net_input"].items() if k != "prev_output_tokens"}
    if len(inputs) == len(sample["net_input"]):
        raise UserError(
            f"--{option}: {type(module).__name__} is a language model, whose texts have no source; "
            "leave the option out."
        )
    return inputs
