"""Computes losses of pairs of an image and a sentence, which compare each pair with negatives.

The ranking loss is equation 6 of Kiros et al. 2014; with hardest negatives, it is equation 6 of
Faghri et al. 2018 (VSE++). InfoNCE is the loss of van den Oord et al. 2018
(https://arxiv.org/abs/1807.03748, equation 4), in both directions as in CLIP (Radford et al. 2021,
https://arxiv.org/abs/2103.00020, section 2.3).
"""

from typing import Optional, Union

import torch
from torch import Tensor


def pairwise_ranking_loss(
    images: Tensor,
    sentences: Tensor,
    is_negative: Tensor,
    *,
    margin: float,
    negatives: str = "sum",
    all_images: Optional[Tensor] = None,
    all_sentences: Optional[Tensor] = None,
) -> Tensor:
    """Compute the ranking loss of B pairs of an image x and a sentence v, for negatives k::

        max(0, margin - s(x, v) + s(x, v_k)) + max(0, margin - s(v, x) + s(v, x_k))

    where s is the inner product. The negatives are among C candidates, which are pairs as well.

    Args:
        images: [B, K] embedding x of each pair's image.
        sentences: [B, K] embedding v of each pair's sentence.
        is_negative: [B, C] bool, True if candidate k is a negative of the pair.
        negatives: ``sum`` for the sum over all negatives; ``max`` for only the hardest negative
            sentence and the hardest negative image of each pair.
        all_images: [C, K] embeddings x_k of the candidates; None for ``images``.
        all_sentences: [C, K] embeddings v_k of the candidates; None for ``sentences``.
    """
    true_scores, candidate_scores = _compute_scores(images, sentences, all_images, all_sentences)
    loss = true_scores.new_zeros(())
    for scores in candidate_scores:
        # Masked, because a pair against itself costs exactly the margin: that has no gradient, but
        # it would hide the negatives from max.
        costs = (margin - true_scores + scores).clamp(min=0).masked_fill(~is_negative, 0.0)
        if negatives == "max":
            # max() refuses an empty dimension; a batch without candidates costs nothing.
            loss = loss + (costs.max(dim=1).values.sum() if costs.numel() else costs.sum())
        else:
            loss = loss + costs.sum()
    return loss


def info_nce_loss(
    images: Tensor,
    sentences: Tensor,
    is_negative: Tensor,
    *,
    temperature: Union[float, Tensor],
    all_images: Optional[Tensor] = None,
    all_sentences: Optional[Tensor] = None,
) -> Tensor:
    """Compute InfoNCE of B pairs of an image x and a sentence v, for negatives k::

        - log(e(x, v) / (e(x, v) + sum_k e(x, v_k))) - log(e(x, v) / (e(x, v) + sum_k e(x_k, v)))

    where e(x, v) is exp(s(x, v) / temperature) and s is the inner product. See
    :func:`pairwise_ranking_loss` for the arguments; ``temperature`` is a scalar tensor if it is
    trained.
    """
    true_scores, candidate_scores = _compute_scores(images, sentences, all_images, all_sentences)
    true_logits = true_scores / temperature  # [B, 1]
    loss = true_scores.new_zeros(())
    for scores in candidate_scores:
        logits = (scores / temperature).masked_fill(~is_negative, float("-inf"))
        # The pair itself is a column of its own, because its place among the candidates differs
        # between one process and several, and random negatives do not contain it.
        logits = torch.cat([true_logits, logits], dim=1)
        loss = loss + (logits.logsumexp(dim=1) - logits[:, 0]).sum()
    return loss


def _compute_scores(
    images: Tensor,
    sentences: Tensor,
    all_images: Optional[Tensor],
    all_sentences: Optional[Tensor],
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    # Half precision resolves a cosine near 1 to 0.0005 (float16) or 0.004 (bfloat16), which is
    # coarse against a margin of 0.2.
    images, sentences = images.float(), sentences.float()
    all_images = images if all_images is None else all_images.float()
    all_sentences = sentences if all_sentences is None else all_sentences.float()
    true_scores = (images * sentences).sum(-1, keepdim=True)
    sentence_scores = images @ all_sentences.t()
    # if the candidates are the pairs themselves, one product serves both directions
    is_square = all_images is images and all_sentences is sentences
    image_scores = sentence_scores.t() if is_square else sentences @ all_images.t()
    return true_scores, (sentence_scores, image_scores)
