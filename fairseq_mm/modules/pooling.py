"""Pools the vectors of a sentence's words, or of an image's regions, to one vector."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_mm.modules.positions import sinusoids

# Chen et al. 2021, section 3.2: size of the encodings of positions, and of the GRU's states.
_POSITION_DIM = _HIDDEN_DIM = 32


def pool_mean(x: Tensor, lengths: Tensor) -> Tensor:
    """Average the vectors of each row: [B, N, D] -> [B, D]. See ``pool_max`` for the arguments."""
    return x.masked_fill(_is_padding(x, lengths), 0.0).sum(1) / lengths.clamp(min=1).unsqueeze(1)


def pool_max(x: Tensor, lengths: Tensor) -> Tensor:
    """Take the largest value of each dimension over the vectors of each row.

    Args:
        x: [B, N, D] vectors, right-padded; N is 1 or more.
        lengths: [B] number of vectors of each row without padding.

    Returns:
        [B, D]; zeros for a row without vectors.
    """
    largest = x.masked_fill(_is_padding(x, lengths), float("-inf")).amax(1)
    return largest.masked_fill((lengths == 0).unsqueeze(1), 0.0)


def _is_padding(x: Tensor, lengths: Tensor) -> Tensor:
    positions = torch.arange(x.size(1), device=x.device)
    return (positions >= lengths.unsqueeze(1)).unsqueeze(-1)


class GeneralizedPooling(nn.Module):
    """Weighted mean over the sorted values of each dimension, with trained weights.

    GPO of Chen, Hu, Wu, Jiang, Wang. Learning the Best Pooling Strategy for Visual Semantic
    Embedding. 2021. https://arxiv.org/abs/2011.04305, section 3. For a row of N vectors, dimension
    d of the result is

        v_d = sum_k theta_k max_k(x_1d ... x_Nd),   k = 1 ... N

    where max_k is the k-th largest value. The weights theta sum to 1, and depend on N alone: they
    are the softmax of a linear layer over a bidirectional GRU that reads the sinusoidal encodings
    of the positions 1 ... N. The mean (all weights equal) and the maximum (a weight of 1 for k = 1)
    are special cases.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(_POSITION_DIM, _HIDDEN_DIM, batch_first=True, bidirectional=True)
        # no bias, which the softmax would cancel
        self.score_proj = nn.Linear(2 * _HIDDEN_DIM, 1, bias=False)

    def get_weights(self, shortest: int, longest: int) -> Tensor:
        """Compute the weights theta of rows with ``shortest`` to ``longest`` vectors.

        Returns:
            [longest - shortest + 1, longest] weights; row i has the weights of rows with
            ``shortest + i`` vectors, followed by zeros.
        """
        dtype, device = self.score_proj.weight.dtype, self.score_proj.weight.device
        encodings = sinusoids(torch.arange(1, longest + 1, device=device), _POSITION_DIM).to(dtype)
        # From the longest to the shortest, the order in which rows are packed. On the CPU, where
        # packing wants the lengths: copying them from a GPU would wait for it.
        counts = torch.arange(longest, shortest - 1, -1)
        rows = encodings.expand(len(counts), -1, -1)
        states, _ = self.gru(pack_padded_sequence(rows, counts, batch_first=True))
        states, _ = pad_packed_sequence(states, batch_first=True)
        scores = self.score_proj(states).squeeze(-1).float().flip(0)
        lengths = torch.arange(shortest, longest + 1, device=device)
        positions = torch.arange(longest, device=device)
        scores = scores.masked_fill(positions >= lengths.unsqueeze(1), float("-inf"))
        return scores.softmax(dim=1)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Pool vectors: [B, N, D] -> [B, D]; see :func:`pool_max` for the arguments."""
        longest = x.size(1)
        # A GPU would have to be waited for to know the shortest row.
        shortest = 1
        if lengths.numel() and not lengths.is_cuda:
            shortest = max(1, int(lengths.min()))
        weights = self.get_weights(shortest, longest)[(lengths - shortest).clamp(min=0)]  # [B, N]
        is_padding = _is_padding(x, lengths)
        # The values of a dimension side by side: sorting them is then much faster than over rows.
        values = x.masked_fill(is_padding, float("-inf")).transpose(1, 2).contiguous()
        values = values.sort(dim=2, descending=True).values
        values = values.masked_fill(is_padding.transpose(1, 2), 0.0)  # [B, D, N]
        return torch.matmul(values, weights.to(x.dtype).unsqueeze(-1)).squeeze(-1)
