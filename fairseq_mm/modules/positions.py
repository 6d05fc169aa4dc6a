"""Computes encodings of token positions, and positions within the sentences of a story."""

import math
from typing import Optional, Union

import torch
from torch import Tensor, nn


def sinusoids(positions: Tensor, dim: int, *, interleaved: bool = True) -> Tensor:
    """Encode positions [...] by sines and cosines: [..., dim] float32 (Vaswani et al. 2017, section
    3.5).

    With ``interleaved``, sine and cosine of each frequency are side by side; otherwise all sines
    come first, as in Dai et al. 2019.
    """
    # In half precision large positions would be equal: the numbers of bfloat16 at 1000 are 4 apart.
    exponents = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim
    angles = positions.float().unsqueeze(-1) * torch.exp(-math.log(10000.0) * exponents)
    if interleaved:
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class PositionedEmbedding(nn.Module):
    """Sum of word embedding and learned position embedding.

    As in fairseq, the first real token has position ``padding_idx + 1``: with ``padding_idx`` 1, a
    table of 1024 positions is enough for texts of 1022 tokens. The vectors of padding are not zero.
    """

    def __init__(self, num_types: int, embed_dim: int, padding_idx: int, table_rows: int) -> None:
        super().__init__()
        self.padding_idx = padding_idx
        self.tokens = nn.Embedding(num_types, embed_dim, padding_idx)
        self.positions = nn.Embedding(table_rows, embed_dim, padding_idx)
        # As in the released code, this also fills the row of padding, which nn.Embedding has
        # zeroed.
        nn.init.normal_(self.tokens.weight, std=0.1)
        nn.init.normal_(self.positions.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed words: [B, T] -> [B, T, embed_dim]."""
        valid_mask = tokens.ne(self.padding_idx).long()
        # Counted over real tokens only, so that a left-padded source has the same positions as
        # without padding.
        positions = valid_mask.cumsum(dim=1) * valid_mask + self.padding_idx
        return self.tokens(tokens) + self.positions(positions)

    def step(self, tokens: Tensor, number: Union[int, Tensor]) -> Tensor:
        """Embed each row's word at position ``number``, counted from 1: [B] -> [B, embed_dim]."""
        return self.tokens(tokens) + self.positions.weight[self.padding_idx + number]

    def max_positions(self) -> int:
        return self.positions.num_embeddings - self.padding_idx - 1


def sentence_positions(tokens: Tensor, separator: int) -> tuple[Tensor, Tensor]:
    """Find the sentence of each token of a story [B, T], and its position in the sentence, from 0.

    A separator is the start token of the next sentence.
    """
    is_start = tokens.eq(separator)
    is_start[:, 0] = False  # whatever the first token is, it starts sentence 0
    times = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
    # A running maximum, because the latest start so far is the start of the current sentence.
    starts = torch.where(is_start, times, torch.zeros_like(times)).cummax(dim=1).values
    return is_start.long().cumsum(dim=1), times - starts


def next_positions(
    places: Optional[tuple[Tensor, Tensor]], tokens: Tensor, separator: int
) -> tuple[Tensor, Tensor]:
    """Compute :func:`sentence_positions` of new tokens [B] from ``places`` of the last ones."""
    if places is None:
        return torch.zeros_like(tokens), torch.zeros_like(tokens)
    sentences, positions = places
    is_start = tokens.eq(separator)
    return sentences + is_start.long(), (positions + 1).masked_fill(is_start, 0)


def select_sentence_vectors(vectors: Tensor, sentences: Tensor) -> Tensor:
    """Select for each token the vector of its sentence: [B, N, ...] -> [B, T, ...].

    An index [B, T] of N or more selects the last vector.
    """
    # Without constraints, a search may generate more separators than there are images.
    chosen = sentences.clamp(max=vectors.size(1) - 1)
    rows = torch.arange(len(chosen), device=chosen.device).unsqueeze(1)
    return vectors[rows, chosen]
