"""Positions of a story's words: index of the sentence, and position within it."""

from typing import Optional

import torch
from torch import Tensor


def sentence_positions(tokens: Tensor, separator: int) -> tuple[Tensor, Tensor]:
    """
    Args:
        tokens: ``[B, T]`` input tokens of a story: a start token, then words. A separator among
            them is the start token of the next sentence.
        separator: its index in the dictionary.

    Returns:
        sentences: ``[B, T]`` of each token, from 0.
        positions: ``[B, T]`` in its sentence, 0 for the start token.
    """
    is_start = tokens.eq(separator)
    is_start[:, 0] = False  # whatever the first token is, it starts sentence 0
    times = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
    starts = torch.where(is_start, times, torch.zeros_like(times)).cummax(dim=1).values
    return is_start.long().cumsum(dim=1), times - starts


def next_positions(
    places: Optional[tuple[Tensor, Tensor]], tokens: Tensor, separator: int
) -> tuple[Tensor, Tensor]:
    """:func:`sentence_positions` one token at a time.

    Args:
        places: ``[B]`` sentence and position of the token before; None at the first.
        tokens: ``[B]`` the new tokens.
        separator: as above.

    Returns:
        sentences ``[B]`` and positions ``[B]`` of the new tokens.
    """
    if places is None:
        return torch.zeros_like(tokens), torch.zeros_like(tokens)
    sentences, positions = places
    is_start = tokens.eq(separator)
    return sentences + is_start.long(), (positions + 1).masked_fill(is_start, 0)


def vectors_of_sentences(vectors: Tensor, sentences: Tensor) -> Tensor:
    """
    Args:
        vectors: ``[B, N, ...]`` one for each sentence.
        sentences: ``[B, T]``; those after the last take the last vector.

    Returns:
        ``[B, T, ...]``: the vector of each token's sentence.
    """
    chosen = sentences.clamp(max=vectors.size(1) - 1)
    rows = torch.arange(len(chosen), device=chosen.device).unsqueeze(1)
    return vectors[rows, chosen]
