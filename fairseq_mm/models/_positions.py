"""Embeddings of words and of their positions."""

from torch import Tensor, nn


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
