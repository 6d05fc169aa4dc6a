import torch

from fairseq_mm.modules.decoding_caches import SentenceCache, keeps_all


def test_rows_are_written_at_their_own_places_and_see_no_further():
    cache = SentenceCache.empty([(2, 3, 4), (2, 5)], torch.zeros(()), capacity=2)
    cache.reserve(torch.tensor([0, 4]))
    assert cache.capacity == 8
    keys, states = torch.randn(2, 3, 4), torch.randn(2, 5)
    positions = torch.tensor([1, 4])
    written = cache.write(0, keys, positions)
    cache.write(1, states, positions)
    for row, position in enumerate([1, 4]):
        assert torch.equal(written[row, :, position], keys[row])
        assert torch.equal(cache.parts[1][row, position], states[row])
        others = [place for place in range(8) if place != position]
        assert not written[row][:, others].any()
    assert cache.attention_mask(positions)[:, 0, 0].sum(dim=1).tolist() == [2, 5]


def test_a_new_order_moves_rows_and_an_old_one_copies_nothing():
    cache = SentenceCache([torch.arange(6.0).view(3, 1, 2)])
    before = cache.parts[0]
    cache.select(torch.tensor([0, 1, 2]))
    assert cache.parts[0] is before
    cache.select(torch.tensor([2, 0]))
    assert cache.parts[0].flatten().tolist() == [4, 5, 0, 1]
    assert keeps_all(torch.arange(3), 3)
    assert not keeps_all(torch.arange(2), 3)
    assert not keeps_all(torch.tensor([1, 0]), 2)
