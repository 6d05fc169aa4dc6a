"""Defines the memory of Transtory-XL (Li et al. 2020): states of the preceding sentences.

A sentence is called a segment here, as in Transformer-XL.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class SegmentMemory(NamedTuple):
    """Hidden states of the tokens of earlier segments (sentences).

    A slot holds the hidden state of one token.

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
        lengths: [B] number of tokens of each row's segment, on the device of ``memory.ages`` and
            ``memory.valid_mask``.
        segment_length: Length to which shorter segments count as padded; longer segments are not
            truncated.
        memory_length: Maximum number of slots of the memory, l_M in the paper.

    Returns:
        The new memory.
    """
    device = lengths.device
    ages = torch.arange(memory_length, 0, -1, device=device)
    # A short sentence takes the room of a padded one, as in section 3.5.3; its padding is then
    # invisible.
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
        # The first memory has one slot that represents all equal slots.
        states = torch.cat([old.expand(-1, num_old, -1), new], dim=1)
        contents.append(states.gather(1, index.unsqueeze(-1).expand(-1, -1, new.size(-1))))
    return SegmentMemory(contents, ages[is_used], valid_mask[:, is_used])
