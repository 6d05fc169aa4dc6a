"""Repairs of fairseq's training: positions of resumed data."""

import pytest
import torch
from fairseq.data.iterators import EpochBatchIterator


class Numbers(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return index

    def __len__(self):
        return 10


def epoch_iterator(num_shards, shard_id):
    batches = [[index] for index in range(10)]
    return EpochBatchIterator(Numbers(), list, batches, num_shards=num_shards, shard_id=shard_id)


@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("now", [1, 2, 3, 4])
def test_other_processes_go_on_where_the_data_was_left(before, now):
    """Nothing is left out, and less than one update's batches are read again."""
    for steps in range(1, -(-10 // before)):
        read, position = [], {}
        for shard in range(before):
            iterator = epoch_iterator(before, shard)
            iterator.next_epoch_itr().skip(steps)
            position = {**iterator.state_dict(), "num_shards": before}
        order = epoch_iterator(1, 0).next_epoch_itr()
        order = [batch[0] for batch in order]
        for shard in range(now):
            iterator = epoch_iterator(now, shard)
            iterator.load_state_dict(position)
            read += [batch[0] for batch in iterator.next_epoch_itr() if batch]
        expected = set(order[steps * before :])
        assert expected <= set(read)
        assert len(read) - len(expected) < now
        if before == now or steps * before % now == 0:
            assert len(read) == len(expected)
