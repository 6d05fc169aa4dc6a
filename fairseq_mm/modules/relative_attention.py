"""Defines self-attention with relative positions over a memory and a segment of text."""

import functools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_mm.modules.attention import split_heads
from fairseq_mm.modules.positions import sinusoids


class SegmentMemory(NamedTuple):
    """Hidden states of the tokens of earlier segments (sentences), one per slot.

    Attributes:
        contents: For each layer, the states [B, slots, D]; [B, 1, D] stands for equal states in all
            slots.
        ages: [slots] distance from the token of each slot to the first token of the next segment,
            in tokens, at least 1.
        valid_mask: [B, slots] bool, False if the slot is padding.
    """

    contents: list[Tensor]
    ages: Tensor
    valid_mask: Tensor


def remember(
    memory: SegmentMemory,
    hidden: list[Tensor],
    lengths: Tensor,
    *,
    segment_length: int,
    memory_length: int,
) -> SegmentMemory:
    """Append a segment to the memory (Li et al. 2020, equations 9 to 11).

    The new memory has the last ``memory_length`` states of the old memory followed by the segment.
    A segment that is shorter than ``segment_length`` is first padded to this length (section 3.5.3
    of the paper), so its padding displaces old states too. Slots that are padding in all rows of
    the batch are not stored, but count in ``ages`` and in ``memory_length``.

    Args:
        memory: Memory before the segment.
        hidden: For each layer, the states [B, L, D] of the segment's tokens, right-padded.
        lengths: [B] number of tokens of each row's segment, on the device of ``memory.ages``.
    """
    device = lengths.device
    ages = torch.arange(memory_length, 0, -1, device=device)
    spans = lengths.clamp(min=segment_length).unsqueeze(1)  # [B, 1] with padding
    places = spans - ages  # [B, M] in the segment; negative: before it
    # slot of each former age in the old memory; -1: none
    # The old memory may have gaps, where slots of padding were dropped, so slots are found by their
    # age.
    slots = torch.full((memory_length + 1,), -1, dtype=torch.long, device=device)
    slots[memory.ages] = torch.arange(len(memory.ages), device=device)
    former = slots[(-places).clamp(min=0, max=memory_length)]
    old_valid_mask = memory.valid_mask.gather(1, former.clamp(min=0)) & (former >= 0)
    # Places of the segment are real up to its length; older places are as real as they were before.
    valid_mask = torch.where(places >= 0, places < lengths.unsqueeze(1), old_valid_mask)
    is_used = valid_mask.any(dim=0)
    if not is_used.any():
        is_used[-1] = True  # one slot of padding, so that no tensor of the memory is empty
    places, former = places[:, is_used], former[:, is_used]
    num_old = len(memory.ages)
    index = torch.where(places >= 0, places.clamp(max=hidden[0].size(1) - 1) + num_old, former)
    # Indices may have been computed on the CPU; the copy does not wait for the GPU.
    index = index.clamp(min=0).to(hidden[0].device, non_blocking=True)
    contents = []
    for old, new in zip(memory.contents, hidden):
        states = torch.cat([old.expand(-1, num_old, -1), new], dim=1)
        contents.append(states.gather(1, index.unsqueeze(-1).expand(-1, -1, new.size(-1))))
    return SegmentMemory(contents, ages[is_used], valid_mask[:, is_used])


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
    The weights are the softmax of A / sqrt(head_dim). Distances above ``clamp_length`` count as
    this one; ``dropout`` applies to the sinusoids.
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
        """Compute the attention weights [B, heads, L, K] of L queries for K keys, in float32.

        Args:
            queries: [B, heads, L, head_dim].
            keys: [B, heads, K, head_dim].
            distance_keys: Result of :meth:`distance_keys`.
            distances: [B or 1, L, K] distance from each key to each query, an index of the distance
                keys also where ``attention_mask`` is False.
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
