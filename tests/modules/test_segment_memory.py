"""The memory's update beside equations 9 to 11 on padded lists."""

import pytest
import torch

from fairseq_mm.modules.relative_attention import SegmentMemory, remember


def slots_of(memory, row, layer, memory_length):
    """Age -> vector of the real slots."""
    contents = memory.contents[layer].expand(-1, len(memory.ages), -1)
    return {
        age: contents[row, place].tolist()
        for place, age in enumerate(memory.ages.tolist())
        if memory.valid_mask[row, place]
    }


@pytest.mark.parametrize("memory_length", [2, 4, 5, 7, 8, 13])
@pytest.mark.parametrize("segment_length", [0, 4])
def test_three_updates_equal_slices_of_padded_lists(memory_length, segment_length):
    torch.manual_seed(5)
    B, D = 3, 2
    first = [torch.randn(B, 1, D), torch.randn(B, 1, D)]
    ages = torch.arange(memory_length, 0, -1)
    memory = SegmentMemory(first, ages, torch.ones(B, memory_length, dtype=torch.bool))
    lists = [
        [[x[row, 0].tolist()] * memory_length for row in range(B)] for x in first
    ]  # [layer][row][slot], None at padding
    for lengths in ([1, 4, 3], [2, 1, 6], [3, 3, 1]):
        hidden = [torch.randn(B, max(lengths), D) for _ in first]
        memory = remember(
            memory,
            hidden,
            torch.tensor(lengths),
            segment_length=segment_length,
            memory_length=memory_length,
        )
        for layer, x in enumerate(hidden):
            for row, length in enumerate(lengths):
                segment = x[row, :length].tolist()
                segment += [None] * (segment_length - length)
                end = len(lists[layer][row]) + len(segment)
                begin = max(0, end - memory_length)
                lists[layer][row] = (lists[layer][row] + segment)[begin:end]
                expected = {
                    len(lists[layer][row]) - place: vector
                    for place, vector in enumerate(lists[layer][row])
                    if vector is not None
                }
                assert slots_of(memory, row, layer, memory_length) == expected
