"""What is written comes back for each layer and row, in the order that rows have now."""

import torch

from fairseq_mm.modules.decoding_caches import KeyValueCache

L, B, H, A = 2, 3, 4, 5


def test_tokens_come_back_in_the_rows_order_over_many_blocks():
    torch.manual_seed(0)
    cache = KeyValueCache(L, H, A, torch.empty(B, 0))
    expected = torch.empty(2 * L, B, H, 0, A)
    for step in range(40):
        cache.add_position()
        new = torch.randn(2 * L, B, H, 1, A)
        expected = torch.cat([expected, new], dim=3)
        for layer in range(L):
            keys, values = cache.write(layer, new[2 * layer], new[2 * layer + 1])
            assert torch.equal(keys, expected[2 * layer])
            assert torch.equal(values, expected[2 * layer + 1])
        order = torch.randint(0, B, (B,)) if step % 3 else torch.arange(B)
        cache.select(order)
        expected = expected[:, order]


def test_rows_leave():
    cache = KeyValueCache(1, H, A, torch.empty(B, 0))
    cache.add_position()
    first = torch.randn(B, H, 1, A)
    cache.write(0, first, first)
    cache.select(torch.tensor([2, 0]))
    cache.add_position()
    keys, _ = cache.write(0, first[:2], first[:2])
    assert torch.equal(keys[:, :, :1], first[[2, 0]])
