"""Positions of tokens: their encodings, and their places in the sentences of a story."""

import math
from typing import Optional

import torch
from torch import Tensor, nn


def sinusoids(positions: Tensor, dim: int, *, interleaved: bool = True) -> Tensor:
    """Vaswani et al. 2017, section 3.5: sines and cosines of geometric frequencies.

    Args:
        positions: ``[...]`` numbers.
        dim: even.
        interleaved: sine and cosine of a frequency side by side; else all sines come first, as in
            Dai et al. 2019.

    Returns:
        ``[..., dim]`` float32.
    """
    exponents = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim
    angles = positions.float().unsqueeze(-1) * torch.exp(-math.log(10000.0) * exponents)
    if interleaved:
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class PositionedEmbedding(nn.Module):
    """Sum of a word's and of its position's vector, both N(0, 0.1) at first.

    Positions are counted from the first real token, from ``padding_idx + 1`` on as in fairseq, so
    that a table of 1024 rows has 1022 positions. Padding has a vector as well.

    Args:
        embed_dim: E.
        table_rows: rows of the positions' table.
    """

    def __init__(self, num_types: int, embed_dim: int, padding_idx: int, table_rows: int) -> None:
        super().__init__()
        self.padding_idx = padding_idx
        self.tokens = nn.Embedding(num_types, embed_dim, padding_idx)
        self.positions = nn.Embedding(table_rows, embed_dim, padding_idx)
        nn.init.normal_(self.tokens.weight, std=0.1)
        nn.init.normal_(self.positions.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        """``[B, T]`` words give ``[B, T, E]``."""
        valid_mask = tokens.ne(self.padding_idx).long()
        positions = valid_mask.cumsum(dim=1) * valid_mask + self.padding_idx
        return self.tokens(tokens) + self.positions(positions)

    def step(self, tokens: Tensor, number: int) -> Tensor:
        """``[B]`` words, each the ``number``-th of its text (from 1), give ``[B, E]``."""
        return self.tokens(tokens) + self.positions.weight[self.padding_idx + number]

    def max_positions(self) -> int:
        return self.positions.num_embeddings - self.padding_idx - 1


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
