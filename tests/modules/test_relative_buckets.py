"""Buckets of distances equal the paper's ranges, and a stack's bias is that of each pair."""

import math

import pytest
import torch

from fairseq_mm.modules.t5_layers import RelativeBias, relative_buckets


def bucket_in_loops(offset, bidirectional, num_buckets, max_distance):
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if offset > 0 else 0
        distance = abs(offset)
    else:
        distance = max(0, -offset)
    num_exact = num_buckets // 2
    if distance < num_exact:
        return first + distance
    share = math.log(distance / num_exact) / math.log(max_distance / num_exact)
    # borders of ranges are exact numbers in some of the sizes tested
    in_range = math.floor(share * (num_buckets - num_exact) + 1e-9)
    return first + min(num_exact + in_range, num_buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (12, 50)])
def test_buckets_equal_loops(bidirectional, num_buckets, max_distance):
    offsets = torch.arange(-170, 171)
    buckets = relative_buckets(
        offsets, bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance
    )
    expected = [
        bucket_in_loops(int(offset), bidirectional, num_buckets, max_distance) for offset in offsets
    ]
    assert buckets.tolist() == expected


def test_buckets_of_t5_by_hand():
    # 16 buckets a direction, 8 of them exact; 8 to 11 share one: 8 log(11 / 8) / log(16) < 1
    offsets = torch.tensor([0, -1, -7, -8, -11, -12, -127, -128, -9999, 1, 8, 9999])
    buckets = relative_buckets(offsets, bidirectional=True, num_buckets=32, max_distance=128)
    assert buckets.tolist() == [0, 1, 7, 8, 8, 9, 15, 15, 15, 17, 24, 31]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_bias_is_that_of_each_pair(bidirectional):
    torch.manual_seed(0)
    bias = RelativeBias(8, 3, max_distance=6, bidirectional=bidirectional)
    torch.nn.init.normal_(bias.weight)
    T = 11
    table = bias(T)
    assert table.shape == (1, 3, T, T)
    for query in range(T):
        for key in range(T):
            bucket = bucket_in_loops(key - query, bidirectional, 8, 6)
            assert torch.equal(table[0, :, query, key], bias.weight[bucket])


def test_bias_of_the_newest_token_is_the_last_row():
    bias = RelativeBias(8, 3, max_distance=6, bidirectional=False)
    torch.nn.init.normal_(bias.weight)
    assert torch.equal(bias.newest(13), bias(13)[0, :, -1])
