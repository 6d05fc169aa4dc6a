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


def test_memories_move_with_their_rows():
    """Equal to the selection of whole rows, whichever rows begin a memory and whenever."""
    torch.manual_seed(0)
    M, B = 3, 6
    cache = SentenceCache.empty([(B, 2, 4), (B, 5)], torch.zeros(()), capacity=2, memory_length=M)
    expected = [x.clone() for x in cache.parts]
    for step in range(12):
        rows = torch.randperm(B)[: step % 3]
        for x in expected:
            x[rows, ..., :M, :] = torch.randn(x[rows, ..., :M, :].shape)
        for mine, x in zip(cache.parts, expected):
            mine[rows, ..., :M, :] = x[rows, ..., :M, :]
        cache.begin_memory(rows)
        positions = M + torch.randint(step + 1, (B,))
        cache.reserve(positions)
        missing = cache.capacity - expected[0].size(-2)
        expected = [torch.nn.functional.pad(x, (0, 0, 0, missing)) for x in expected]
        for part, x in enumerate(expected):
            values = torch.randn(B, *x.shape[1:-2], x.size(-1))
            cache.write(part, values, positions)
            x.movedim(-2, 1)[torch.arange(B), positions] = values
        if step == 8:
            B = 4
        order = torch.randint(len(positions), (B,))
        cache.select(order)
        expected = [x[order] for x in expected]
        # entries behind a row's position are never read
        used = int(positions.max()) + 1
        for mine, x in zip(cache.parts, expected):
            assert torch.equal(mine[..., :used, :], x[..., :used, :])
