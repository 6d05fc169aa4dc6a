"""Finds the most probable words faster than fairseq's search, on CPUs.

``torch.topk`` takes 3.9 ms on one core to find the 10 best of 104,960 words for 32 texts, a fifth
of the time of the product that computes the scores. :func:`top_words` takes 1.3 ms: it computes
the maxima of blocks of words, and calls ``topk`` for the words of the 10 best blocks.
"""

from typing import Optional

import torch
from fairseq import search as fairseq_search
from torch import Tensor

# Words of a block. Blocks of 16 and 64 words are as fast.
_BLOCK = 32
# Blocks are used if the best blocks and the rest have at most a sixteenth of all words. With an
# eighth, blocks are as fast as `topk` for 32 texts, and slower for 192.
_MAX_SHARE = 16


def top_words(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k highest scores of each row, the highest first.

    The result equals ``scores.topk(k)``, except that other words with equal scores may be chosen.

    Args:
        scores: [..., V] scores of V words, without NaN.
        k: Number of words, at most V.

    Returns:
        Scores [..., k] and indices [..., k] of the words.
    """
    V = scores.size(-1)
    count = V // _BLOCK
    if not _is_faster(scores, k):
        return scores.topk(k)
    # Block b has the words b, b + count, b + 2 count and so on, because PyTorch is faster in
    # computing maxima of whole rows than maxima inside a row.
    blocks = scores[..., : count * _BLOCK].unflatten(-1, (_BLOCK, count)).amax(dim=-2)
    best = blocks.topk(k).indices.unsqueeze(-1)
    inside = (best + count * torch.arange(_BLOCK, device=scores.device)).flatten(-2)
    rest = torch.arange(count * _BLOCK, V, device=scores.device).expand(*inside.shape[:-1], -1)
    words = torch.cat([inside, rest], dim=-1)
    values, places = scores.gather(-1, words).topk(k)
    return values, words.gather(-1, places)


def _is_faster(scores: Tensor, k: int) -> bool:
    """Return True if blocks are faster than ``topk`` for k of the scores [..., V]."""
    # On a GPU, topk is fast, and six operations take longer to start than one.
    return not scores.is_cuda and (k + 1) * _BLOCK * _MAX_SHARE <= scores.size(-1)


class BeamSearch(fairseq_search.BeamSearch):
    """fairseq's beam search, with the same candidates and scores, computed by :func:`top_words`."""

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Optional[Tensor],
        prev_output_tokens: Optional[Tensor] = None,
        original_batch_idxs: Optional[Tensor] = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        number = 2 * lprobs.size(1)  # as fairseq takes of all beams of an input
        if not _is_faster(lprobs, number):
            return super().step(step, lprobs, scores, prev_output_tokens, original_batch_idxs)
        if step == 0:
            # The beams are equal.
            totals, words = top_words(lprobs[:, 0], number)
            return totals, words, torch.zeros_like(words)
        assert scores is not None
        values, words = top_words(lprobs, number)  # [B, K, number]
        # Added before beams are compared. Within a beam, the sums have the order of the words.
        values = values + scores[:, :, step - 1].unsqueeze(-1)
        totals, places = values.flatten(1).topk(number)
        beams = torch.div(places, number, rounding_mode="trunc")
        return totals, words.flatten(1).gather(1, places), beams
