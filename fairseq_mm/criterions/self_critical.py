"""Self-critical sequence training (``--criterion self_critical``): rewards in place of likelihood.

Rennie, Marcheret, Mroueh, Ross, Goel. Self-critical Sequence Training for Image Captioning. CVPR
2017. https://arxiv.org/abs/1612.00563

Luo. A Better Variant of Self-Critical Sequence Training. 2020. https://arxiv.org/abs/2003.09971

Per input, K texts w^1 to w^K are sampled from the model. The loss is minus the expected reward r of
a text; its gradient is estimated from the samples (REINFORCE):

    - 1/K sum_k (r(w^k) - b_k) grad log p(w^k)

where the baseline b_k is

    greedy     reward of the text of greedy search      (Rennie et al. 2017, equation 7)
    samples    mean reward of the other K - 1 samples   (Luo 2020, equation 5)

With either baseline, the estimate is unbiased, because b_k does not depend on w^k. The texts are
sampled without gradients; one pass of the model then computes all their log-probabilities.
Meanwhile, worker processes compute the rewards (:mod:`fairseq_mm.metrics.rewards`). The references
of an input are all lines of the training split with the same image, image sequence or video.

In validation, the loss is the cross-entropy of the references.

Differs from both papers:
- A word that generation never writes, such as ``<unk>``, is not sampled, and p is the distribution
  over the other words.
- Without ``--sample-dropout``, gradients are computed without dropout, because texts are sampled
  without dropout, too.
"""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from omegaconf import II
from torch import Tensor, nn

from fairseq_mm.compat.options import check_sizes, option
from fairseq_mm.criterions._linear_output import replaced, unwrap
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.cider import InverseDocumentFrequencies, count_documents, ngram_counts
from fairseq_mm.metrics.rewards import Job, Rewards, RewardWorkers, read_rewards


@contextlib.contextmanager
def evaluation_mode(model: nn.Module, *, has_gradients: bool = False) -> Iterator[None]:
    """Set evaluation mode in a ``with`` block; then restore the mode of every submodule.

    If gradients are computed, recurrent layers stay in training mode, without dropout, because
    cuDNN computes gradients in no other mode.
    """
    modes = [(part, part.training) for part in model.modules()]
    recurrent = [part for part, _ in modes if isinstance(part, nn.RNNBase) and has_gradients]
    rates = [layer.dropout for layer in recurrent]
    model.eval()
    for layer in recurrent:
        layer.dropout = 0.0
        layer.training = True
    try:
        yield
    finally:
        # not by train(), which would change all parts alike
        for part, mode in modes:
            part.training = mode
        for layer, rate in zip(recurrent, rates):
            layer.dropout = rate


logger = logging.getLogger(__name__)

BASELINES = ("samples", "greedy")
# created at run time, so Any for type checkers
Baseline: Any = ChoiceEnum(BASELINES)
_NAME = "--criterion self_critical"
# Words of the texts in which document frequencies are counted. Their n-grams are held in memory;
# the captions of COCO have 7 million words.
_MAX_WORDS = 12_000_000
# sums over the samples of an update that the log has
_SUMS = ("reward", "greedy_reward", "sample_length", "cut_samples")


@dataclass
class SelfCriticalConfig(FairseqDataclass):
    rewards: str = option(
        "cider=1",
        "Rewards and their weights, such as cider=1,bleu=0.5: cider (CIDEr-D, 0 to "
        "10), bleu (smoothed BLEU-4) and rouge_l.",
    )
    num_samples: int = option(5, "Number of samples per input.")
    baseline: Baseline = option(
        "samples",
        "Reward that is subtracted from a sample's reward: the mean reward of the "
        "input's other samples (Luo 2020), or the reward of the text of greedy search (Rennie "
        "et al. 2017).",
    )
    sample_args: str = option(
        "{}",
        "Lengths of samples as a JSON object with max_len_a, max_len_b or min_len "
        "(default: the task's for generation).",
    )
    sample_dropout: bool = option(
        False, "Apply the model's dropout when log-probabilities are computed."
    )
    reward_workers: int = option(
        2, "Number of processes that compute rewards; 0 for the training process.", least=0
    )
    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("self_critical", dataclass=SelfCriticalConfig)
class SelfCriticalCriterion(CrossEntropyCriterion):
    """Self-critical sequence training; samples depend on ``update_num``, which the task sets."""

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        rewards: str,
        num_samples: int,
        baseline: Any,
        sample_args: str,
        sample_dropout: bool,
        reward_workers: int,
    ) -> None:
        super().__init__(task, sentence_avg)
        if not hasattr(task, "build_policy"):
            raise UserError(
                f"{_NAME}: --task {task.cfg._name} does not sample; use a task of ours."
            )
        self.weights = read_rewards(rewards)
        self.baseline = str(baseline)
        least = 2 if self.baseline == "samples" else 1
        if num_samples < least:
            raise UserError(
                f"--num-samples must be {least} or more with --baseline {self.baseline}, but is "
                f"{num_samples}."
            )
        self.num_samples = num_samples
        self.sample_args = sample_args
        self.sample_dropout = sample_dropout
        self.reward_workers = reward_workers
        check_sizes(SelfCriticalConfig, self)
        self.update_num = 0
        self.text = task.reward_text()
        self._policies: Optional[tuple[Any, ...]] = None  # the second is greedy search
        self._workers: Optional[RewardWorkers] = None
        self._references: Optional[References] = None
        self._is_constant_said = False

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Compute the loss, the divisor of gradients, and sums for the log.

        In training, the gradient of the loss is the estimated gradient of the expected reward,
        summed over the sampled texts. In validation, the loss is the cross-entropy of the
        references.
        """
        if not model.training:
            return super().forward(model, sample, reduce)
        module = unwrap(model, "self_critical", generates=True)
        dataset = self.task.datasets[sample["split"]]
        # the next epoch may read another folder
        if self._references is None or self._references.dataset is not dataset:
            self._references = References(dataset, self.text)
        references = self._references
        with evaluation_mode(module):
            drawn = self._draw(module, sample)
        assert self._policies is not None
        policy = self._policies[0]
        if self._workers is None:
            frequencies = references.count_frequencies() if "cider" in self.weights else None
            # by now, the loaders of data have been forked, which need no frequencies
            self._workers = RewardWorkers(Rewards(self.weights, frequencies), self.reward_workers)
        workers = self._workers
        texts: list[list[Any]] = [[] for _ in sample["id"]]
        for tokens, is_cut in drawn:
            for own, lines, cuts in zip(texts, tokens.tolist(), is_cut.tolist()):
                # the model has not written the end of a cut text
                ends = [line.index(self.text.end) + (not cut) for line, cut in zip(lines, cuts)]
                own += [self.text.words(line[:end]) for line, end in zip(lines, ends)]
        lines = sample["id"].tolist()
        workers.submit([Job(own, references[line]) for own, line in zip(texts, lines)])

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            return policy.log_probabilities(sample, drawn[0])

        mode: Any = evaluation_mode(module, has_gradients=True)
        if self.sample_dropout:
            mode = contextlib.nullcontext()
        # inside the forward pass, so that DistributedDataParallel averages gradients as usual
        with mode, replaced(module, "forward", forward):
            log_probabilities = model(**sample["net_input"])
        rewards = torch.tensor(workers.collect(), dtype=torch.float64)
        return self._loss(log_probabilities, rewards, sample, drawn)

    def _loss(
        self, log_probabilities: Tensor, rewards: Tensor, sample: dict[str, Any], drawn: Any
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the results of :meth:`forward`; ``rewards`` [B, K + 1] end with the reward of
        greedy search.
        """
        K = self.num_samples
        own = rewards[:, :K]
        advantages = own - baselines(rewards, K)
        if not self._is_constant_said and bool((own == own[:, :1]).all()) and not advantages.any():
            self._is_constant_said = True
            logger.warning(
                f"{_NAME}: all texts of each input of update {self.update_num} have the same "
                "reward, so there is no gradient."
            )
        loss = -(advantages.to(log_probabilities) * log_probabilities).sum()
        tokens, is_cut = drawn[0]
        count = own.numel()
        num_tokens = int(tokens.ne(self.padding_idx).sum())
        logging_output = {
            "loss": -float(own.sum()),
            "ntokens": num_tokens,
            "nsentences": len(own),
            "sample_size": count,
            "reward": float(own.sum()),
            "greedy_reward": float(rewards[:, K:].sum()) * K,
            # without end tokens, which truncated texts have as well
            "sample_length": num_tokens - count,
            "cut_samples": int(is_cut.sum()),
            "samples": count,
        }
        return loss, count, logging_output

    def _draw(self, module: Any, sample: dict[str, Any]) -> list[Any]:
        if self._policies is None:
            kinds = [(self.num_samples, True), (1, False)]
            self._policies = tuple(
                self.task.build_policy(module, beam, sampling=is_sampling, text=self.sample_args)
                for beam, is_sampling in (kinds if self.baseline == "greedy" else kinds[:1])
            )
        # validation's samples, if any, have stream 0
        return [policy.draw(sample, self.update_num + 1) for policy in self._policies]

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the mean reward and length, and the share of cut texts; in validation the loss."""
        samples = sum(log.get("samples", 0) for log in logging_outputs)
        if not samples:
            super().reduce_metrics(logging_outputs)
            return
        for name in ("loss", *_SUMS):
            total = float(sum(log.get(name, 0) for log in logging_outputs))
            if name != "greedy_reward" or total:
                metrics.log_scalar(name, total / samples, samples, round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def baselines(rewards: Tensor, num_samples: int) -> Tensor:
    """Return the baseline [B, K] of each of K samples: the mean reward of the other samples.

    If ``rewards`` is [B, K + 1], not [B, K], the last reward, of greedy search, is the baseline.
    """
    own, greedy = rewards[:, :num_samples], rewards[:, num_samples:]
    if greedy.size(1):
        return greedy.expand_as(own)
    # not from the sum of all: a constant reward must give exactly itself
    others = ~torch.eye(num_samples, dtype=torch.bool)
    rows = own.unsqueeze(1).expand(-1, num_samples, -1)[:, others]
    first = own[:, :1]
    differences = rows.reshape(len(own), num_samples, -1) - first.unsqueeze(1)
    return first + differences.mean(dim=2)


class References:
    """References of each line of a split: all lines of the same item, such as an image."""

    def __init__(self, dataset: Any, text: Any) -> None:
        self.dataset = dataset
        self.text = text
        # texts that were cut for the model are not cut here
        self.lines = getattr(dataset.target, "lines", dataset.target)
        self.item = dataset.item
        self.order = np.argsort(self.item, kind="stable")
        self.starts = np.searchsorted(self.item[self.order], np.arange(self.item.max() + 2))

    def __getitem__(self, line: int) -> list[list[Any]]:
        return self._of_item(self.item[line])

    def _of_item(self, item: int) -> list[list[Any]]:
        lines = self.order[self.starts[item] : self.starts[item + 1]]
        return [self.text.words(self.lines[int(i)].tolist()) for i in lines]

    def count_frequencies(self) -> InverseDocumentFrequencies:
        """Count in how many items each n-gram occurs, and return the n-grams' weights for CIDEr-D.

        If a split has very many words, only some items, spread evenly, are counted.
        """
        total, words = len(self.starts) - 1, int(np.sum(self.lines.sizes))
        count = total if words <= _MAX_WORDS else max(1, total * _MAX_WORDS // words)
        items = (self._of_item(i * total // count) for i in range(count))
        counts = count_documents([ngram_counts(words) for words in texts] for texts in items)
        return InverseDocumentFrequencies(counts, count)
