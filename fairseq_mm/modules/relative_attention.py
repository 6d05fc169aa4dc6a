"""Defines self-attention with relative positions over a memory and a segment of text."""

import functools

import torch
from torch import Tensor, nn

from fairseq_mm.modules.attention import split_heads
from fairseq_mm.modules.positions import sinusoids


# one table for all layers and segments
@functools.lru_cache(maxsize=4)
def _encoded_distances(
    count: int, clamp_length: int, dim: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    distances = torch.arange(count, device=device).clamp(max=clamp_length)
    return sinusoids(distances, dim, interleaved=False).to(dtype)


class RelativeAttention(nn.Module):
    """Self-attention with relative positions (Dai et al. 2019, Transformer-XL, section 3.3):

        A_ij = (q_i + u) k_j + (q_i + v) W_R R_(i - j)

    is the score of key k_j for query q_i, where R is a sinusoid of the distance, and u, v and W_R
    are learned. The queries belong to the current segment, the keys to the memory and the segment.
    The weights are the softmax of A / sqrt(head_dim).

    Args:
        clamp_length: Maximum distance; larger distances count as this one.
        dropout: Dropout of the distances' sinusoids.
    """

    def __init__(
        self, dim: int, num_heads: int, head_dim: int, *, clamp_length: int, dropout: float
    ) -> None:
        super().__init__()
        self.dim = dim
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.clamp_length = clamp_length
        width = num_heads * head_dim
        self.query_proj = nn.Linear(dim, width, bias=False)
        self.key_value_proj = nn.Linear(dim, 2 * width, bias=False)
        self.distance_proj = nn.Linear(dim, width, bias=False)
        self.out_proj = nn.Linear(width, dim, bias=False)
        self.content_bias = nn.Parameter(torch.empty(num_heads, head_dim))  # u
        self.distance_bias = nn.Parameter(torch.empty(num_heads, head_dim))  # v
        for parameter in self.parameters():
            # As in the Transformer-XL of the released code (Hugging Face), u and v included.
            nn.init.normal_(parameter, std=0.02)
        self.dropout = nn.Dropout(dropout)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project x [B, T, dim] to keys and values, [B, heads, T, head_dim] each."""
        keys, values = self.key_value_proj(x).chunk(2, dim=-1)
        return split_heads(keys, self.num_heads), split_heads(values, self.num_heads)

    def distance_keys(self, count: int) -> Tensor:
        """Compute a key [heads, count, head_dim] for each distance from 0 to ``count - 1``."""
        weight = self.distance_proj.weight
        table = _encoded_distances(
            -(-count // 64) * 64, self.clamp_length, self.dim, weight.dtype, weight.device
        )
        # Dropout of the sinusoids, not of the weights, as in Transformer-XL.
        keys = self.distance_proj(self.dropout(table[:count]))
        return keys.unflatten(-1, (self.num_heads, -1)).transpose(0, 1)

    def weights(
        self,
        queries: Tensor,
        keys: Tensor,
        distance_keys: Tensor,
        distances: Tensor,
        attention_mask: Tensor,
    ) -> Tensor:
        """Compute the attention weights [B, heads, L, K] of L queries for K keys.

        The softmax is computed in float32.

        Args:
            queries: [B, heads, L, head_dim].
            keys: [B, heads, K, head_dim].
            distance_keys: Result of :meth:`distance_keys`.
            distances: [B or 1, L, K] distance from each key to each query, 0 to the number of
                distance keys - 1; any of these numbers where ``attention_mask`` is False.
            attention_mask: [B or 1, L, K] bool, True where a query may attend.
        """
        content = torch.matmul(queries + self.content_bias.unsqueeze(1), keys.transpose(-1, -2))
        # One product per distance, then a gather for each pair of positions: rows of a batch may be
        # at different positions, so the shift of Transformer-XL does not apply.
        by_distance = torch.matmul(
            queries + self.distance_bias.unsqueeze(1), distance_keys.transpose(-1, -2)
        )  # [B, H, L, count]
        chosen = distances.unsqueeze(1).expand(*by_distance.shape[:3], keys.size(2))
        position = by_distance.gather(-1, chosen)
        scores = (content + position).float() * self.head_dim**-0.5
        scores = scores.masked_fill(~attention_mask.unsqueeze(1), float("-inf"))
        return scores.softmax(dim=-1).to(queries.dtype)
