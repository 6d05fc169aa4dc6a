"""What a segment remembers of the segments before: Transtory-XL's memory."""

from typing import NamedTuple

import torch
from torch import Tensor


class SegmentMemory(NamedTuple):
    """Hidden states of earlier segments.

    Attributes:
        contents: of each layer ``[B, C, D]``; C may be 1 where all slots hold the same.
        ages: ``[C]`` distance from each slot to the first token of the new segment, 1 at least.
        valid_mask: ``[B, C]`` bool, False at padding.
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
    """Li et al. 2020, equations 9 to 11: the last ``memory_length`` states of memory and segment,
    where each segment is padded to ``segment_length`` (section 3.5.3). Slots that are padding in
    all rows are not kept.

    Args:
        memory: that the segment was read with.
        hidden: of each layer ``[B, L, D]``, the segment's states.
        lengths: ``[B]`` real ones among them, on the device of the memory's ages and mask, which
            need not be the states'.
        segment_length: shorter segments count as padded to it; longer ones are whole.
        memory_length: l_M, the longest memory.

    Returns:
        The new memory.
    """
    device = lengths.device
    ages = torch.arange(memory_length, 0, -1, device=device)
    spans = lengths.clamp(min=segment_length).unsqueeze(1)  # [B, 1] with padding
    places = spans - ages  # [B, M] in the segment; negative: before it
    # slot of each former age in the old memory; -1: none
    slots = torch.full((memory_length + 1,), -1, dtype=torch.long, device=device)
    slots[memory.ages] = torch.arange(len(memory.ages), device=device)
    former = slots[(-places).clamp(min=0, max=memory_length)]
    old_valid_mask = memory.valid_mask.gather(1, former.clamp(min=0)) & (former >= 0)
    valid_mask = torch.where(places >= 0, places < lengths.unsqueeze(1), old_valid_mask)
    kept = valid_mask.any(dim=0)
    if not kept.any():
        kept[-1] = True  # a memory without a slot has no shape; this one is padding
    places, former = places[:, kept], former[:, kept]
    num_old = len(memory.ages)
    index = torch.where(places >= 0, places.clamp(max=hidden[0].size(1) - 1) + num_old, former)
    index = index.clamp(min=0).to(hidden[0].device, non_blocking=True)
    contents = []
    for old, new in zip(memory.contents, hidden):
        states = torch.cat([old.expand(-1, num_old, -1), new], dim=1)
        contents.append(states.gather(1, index.unsqueeze(-1).expand(-1, -1, new.size(-1))))
    return SegmentMemory(contents, ages[kept], valid_mask[:, kept])
