"""Computes the loss of ranking images and sentences (``--criterion pairwise_ranking``).

Kiros et al. 2014 (https://arxiv.org/abs/1411.2539), equation 6: each pair of an image and its
sentence must score higher, by a margin, than its negatives: the image with other sentences and the
sentence with other images. By default, the negatives are the other pairs of the batch, in all
processes, as in the released code of Kiros et al.

``--negatives random`` samples the negatives from the whole training set, as in the text of Kiros et
al. The dataset adds these extra pairs to each batch, different pairs in each epoch.

``--negatives max`` uses the hardest negative of the batch: VSE++, Faghri et al. 2018
(https://arxiv.org/abs/1707.05612). All embeddings may then collapse into one point, where the loss
stays at twice the margin for each pair. ``--sum-updates`` prevents it by summing over all negatives
at first.

``--loss info_nce`` replaces the ranking loss by a cross-entropy over the pair and its negatives, in
both directions: van den Oord et al. 2018 (https://arxiv.org/abs/1807.03748), Radford et al. 2021
(https://arxiv.org/abs/2103.00020). Every negative counts, the more the higher its score; the
temperature says how much more. ``--learn-temperature`` trains it with the model.

Differs from Kiros et al.:
- Equation 6 is a sum over pairs. fairseq divides the gradient by the number of pairs in the batch.
  A learning rate that was chosen for the sum must therefore be multiplied by this number.
- The pairs of a batch share the sampled negatives; each process samples its own.
- Other sentences of the same image are no negatives. In the released code they are negatives;
  ``--same-image-negatives`` restores this.
"""

import math
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.distributed import utils as distributed
from fairseq.logging import metrics
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather

from fairseq_mm.compat.options import check_sizes, option
from fairseq_mm.errors import UserError


def pairwise_loss(
    images: Tensor,
    sentences: Tensor,
    is_negative: Tensor,
    all_images: Tensor,
    all_sentences: Tensor,
    *,
    margin: float = 0.0,
    is_hardest: bool = False,
    temperature: Union[float, Tensor, None] = None,
) -> Tensor:
    """Compute the loss of B pairs of an image x and a sentence v, for negatives k among C pairs.

    It is the ranking loss, where s is the inner product::

        max(0, margin - s(x, v) + s(x, v_k)) + max(0, margin - s(v, x) + s(v, x_k))

    or, if ``temperature`` is given, InfoNCE, where e(x, v) is exp(s(x, v) / temperature)::

        - log(e(x, v) / (e(x, v) + sum_k e(x, v_k))) - log(e(x, v) / (e(x, v) + sum_k e(x_k, v)))

    Args:
        images: [B, K] embedding x of each pair's image.
        sentences: [B, K] embedding v of each pair's sentence.
        is_negative: [B, C] bool, True if candidate k is a negative of the pair.
        all_images: [C, K] embeddings x_k of the candidates.
        all_sentences: [C, K] embeddings v_k of the candidates.
        is_hardest: True if the ranking loss has only the hardest negative sentence and the hardest
            negative image of each pair; False if it is the sum over all negatives.
    """
    # Half precision resolves a cosine near 1 to 0.0005 (float16) or 0.004 (bfloat16), which is
    # coarse against a margin of 0.2.
    images, sentences = images.float(), sentences.float()
    all_images, all_sentences = all_images.float(), all_sentences.float()
    true_scores = (images * sentences).sum(-1, keepdim=True)  # [B, 1]
    sentence_scores = images @ all_sentences.t()
    # if the candidates are the pairs themselves, one product serves both directions
    is_square = all_images is images and all_sentences is sentences
    image_scores = sentence_scores.t() if is_square else sentences @ all_images.t()
    loss = true_scores.new_zeros(())
    for scores in (sentence_scores, image_scores):
        if temperature is not None:
            logits = (scores / temperature).masked_fill(~is_negative, float("-inf"))
            # The pair itself is a column of its own, because its place among the candidates differs
            # between one process and several, and random negatives do not contain it.
            logits = torch.cat([true_scores / temperature, logits], dim=1)
            loss = loss + (logits.logsumexp(dim=1) - logits[:, 0]).sum()
            continue
        # Masked, because a pair against itself costs exactly the margin: that has no gradient, but
        # it would hide the negatives from max.
        costs = (margin - true_scores + scores).clamp(min=0).masked_fill(~is_negative, 0.0)
        # max() refuses an empty dimension; a batch without candidates costs nothing.
        has_max = is_hardest and costs.numel()
        loss = loss + (costs.max(dim=1).values.sum() if has_max else costs.sum())
    return loss


class Gatherer:
    """Communicator that gathers the rows (along dimension 0) of tensors from all processes.

    The gradient of a gathered row flows back to the process that provided the row. Every process
    must create a gatherer with the ``count`` of its rows, which may be 0, and call its methods
    equally often.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.group = distributed.get_data_parallel_group()
        self.rank = distributed.get_data_parallel_rank()
        own = torch.tensor([count], device=device)
        # Counts first: batches of different processes differ in size, and a dummy batch has no
        # rows.
        self.counts = [int(x) for x in distributed.all_gather(own, self.group)]
        self.start = sum(self.counts[: self.rank])  # first row of this process

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, in the order of the ranks."""
        # all_gather needs tensors of equal size
        padded = rows.new_zeros(max(self.counts), *rows.shape[1:])
        count = self.counts[self.rank]
        padded[:count] = rows[:count]
        # Every process has a loss of its own over all rows, so the gradient of a row is the sum
        # over processes.
        gathered = all_gather(padded, self.group)
        return torch.cat([x[:n] for x, n in zip(gathered, self.counts)])


LOSSES = ("ranking", "info_nce")
Loss: Any = ChoiceEnum(LOSSES)  # created at run time, so Any for type checkers
NEGATIVES = ("sum", "max", "random")
Negatives: Any = ChoiceEnum(NEGATIVES)

# A trained temperature stays above this bound, as in CLIP: below it, one negative has nearly all
# of the gradient.
LEAST_LEARNT_TEMPERATURE = 0.01


@dataclass
class PairwiseRankingConfig(FairseqDataclass):
    loss: Loss = option(
        "ranking",
        "Loss of a pair: the margins to its negatives that are not kept (ranking), or "
        "the cross-entropy of the pair among its negatives, in both directions (info_nce).",
    )
    margin: float = option(
        0.2,
        "With --loss ranking: margin by which a pair must score higher than its negatives.",
        above=0,
        needs="loss=ranking",
    )
    loss_temperature: float = option(
        0.1,
        "With --loss info_nce: temperature, by which the scores (cosines) are divided.",
        above=0,
        needs="loss=info_nce",
    )
    learn_temperature: bool = option(
        False,
        "With --loss info_nce: train the temperature, from --loss-temperature on.",
        needs="loss=info_nce",
    )
    negatives: Negatives = option(
        "sum",
        "Negatives of a pair: all other pairs of its batch (sum), only the hardest of "
        "them (max), or random pairs of the training set, as in Kiros et al. 2014 (random).",
    )
    num_negatives: int = option(
        50, "Number of pairs that --negatives random samples per batch.", least=1
    )
    sum_updates: int = option(
        0,
        "With --negatives max: number of updates at the start of training that still "
        "use --negatives sum.",
        least=0,
        needs="negatives=max",
    )
    same_image_negatives: bool = option(
        False,
        "Use other sentences of a pair's image as negatives, as in the released code "
        "of Kiros et al. 2014.",
    )


@register_criterion("pairwise_ranking", dataclass=PairwiseRankingConfig)
class PairwiseRankingCriterion(FairseqCriterion):
    """Criterion of pairwise ranking."""

    def __init__(
        self,
        task: Any,
        loss: str = "ranking",
        margin: float = 0.2,
        loss_temperature: float = 0.1,
        learn_temperature: bool = False,
        negatives: str = "sum",
        num_negatives: int = 50,
        sum_updates: int = 0,
        same_image_negatives: bool = False,
    ) -> None:
        super().__init__(task)
        self.loss = str(loss)
        self.margin = margin
        self.loss_temperature = loss_temperature
        self.learn_temperature = learn_temperature
        self.negatives = str(negatives)
        self.num_negatives = num_negatives
        self.sum_updates = sum_updates
        self.same_image_negatives = same_image_negatives
        check_sizes(PairwiseRankingConfig, self)
        if self.loss == "info_nce" and self.negatives == "max":
            raise UserError("--negatives max needs --loss ranking.")
        self.log_temperature: Optional[nn.Parameter] = None
        if learn_temperature:
            # Its logarithm, so that a step changes it by a factor and it stays positive. A row of
            # one number, because fairseq's legacy_ddp fails for scalars.
            self.log_temperature = nn.Parameter(torch.tensor([math.log(loss_temperature)]))

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Compute the loss summed over pairs, the number of pairs, and sums for the log.

        ``model`` has ``embed_sentences``. ``sample`` is a batch of pairs, with the number ``item``
        [B] of each pair's image. A training batch also has ``update_num``, the number of updates so
        far; ``is_dummy``, True for fairseq's dummy batch; and, for random negatives, ``negatives``,
        the batch of extra pairs.
        """
        if not hasattr(model, "embed_sentences"):
            raise UserError(
                "--criterion pairwise_ranking is for models that embed images and sentences "
                f"(vse_lstm, vse_gru, vse_bow), but the model is {type(model).__name__}."
            )
        temperature: Union[float, Tensor] = self.loss_temperature
        if self.log_temperature is not None:
            temperature = self.log_temperature[0].float().exp().clamp(min=LEAST_LEARNT_TEMPERATURE)
        is_dummy = bool(sample.get("is_dummy"))
        update, negatives = sample.get("update_num"), self.negatives
        # in validation, no pairs are sampled
        if (negatives == "random") if update is None else (update < self.sum_updates):
            negatives = "sum"
        images, sentences = _embed(model, sample)
        items = sample["item"]
        B = len(items)
        if negatives == "random":
            # fairseq may replace a validation batch by a dummy batch, which has no negatives
            extra = sample if is_dummy else sample["negatives"]
            all_images, all_sentences = _embed(model, extra)
            # a pair of the batch may be sampled again; it is no negative of itself
            name = "id" if self.same_image_negatives else "item"
            is_negative = sample[name][:, None] != extra[name]
        else:
            all_images, all_sentences, all_items, start = images, sentences, items, 0
            is_gathered = images.requires_grad and distributed.get_data_parallel_world_size() > 1
            if is_gathered:
                places = Gatherer(0 if is_dummy else B, images.device)
                # Images and sentences together, because each gathering is a round of communication.
                both = places.gather(torch.cat([images.float(), sentences.float()], dim=1))
                all_images, all_sentences = both.chunk(2, dim=1)
                all_items, start = places.gather(items), places.start
            if is_gathered and is_dummy:
                # The loss is zero and depends on all tensors: every process must take part in the
                # backward pass of the gathering.
                is_negative = torch.zeros(B, len(all_items), dtype=torch.bool, device=items.device)
            elif self.same_image_negatives:
                # All but the pair itself: in the released code other sentences of its image are
                # negatives.
                pairs = torch.arange(len(all_items), device=items.device)
                is_negative = pairs[start : start + B, None] != pairs
            else:
                # Sentences of the same image describe it, too, so they are no negatives.
                is_negative = items[:, None] != all_items
        loss = pairwise_loss(
            images,
            sentences,
            is_negative,
            all_images,
            all_sentences,
            margin=self.margin,
            is_hardest=negatives == "max",
            temperature=temperature if self.loss == "info_nce" else None,
        )
        logging_output = {
            "loss": loss.data,
            "ntokens": sample["ntokens"],
            "nsentences": B,
            "sample_size": B,
        }
        if isinstance(temperature, Tensor):
            # a sum over pairs, as the other entries are
            logging_output["temperature"] = B * temperature.detach()
        return loss, B, logging_output

    @property
    def extra_pairs_per_batch(self) -> int:
        """Number of extra pairs that the dataset must add to each training batch as negatives."""
        return self.num_negatives if self.negatives == "random" else 0

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        size = sum(log.get("sample_size", 0) for log in logging_outputs)
        names = ["loss"]
        if any("temperature" in log for log in logging_outputs):
            names.append("temperature")
        for name in names:
            total = sum(log.get(name, 0) for log in logging_outputs)
            metrics.log_scalar(name, total / max(size, 1), size, round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def _embed(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    net_input = batch["net_input"]
    return model(
        features=net_input["features"],
        padding_mask=net_input["padding_mask"],
        tokens=batch["target"],
    )
