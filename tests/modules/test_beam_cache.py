"""Keys and values of beams against rows that each keep copies of their own."""

import pytest
import torch

from fairseq_mm.modules.attention import attend
from fairseq_mm.modules.decoding_caches import BeamCache

LAYERS, HEADS, DIM = 2, 2, 3


class Rows:
    """Every row keeps the keys and values of its own tokens, and copies them when reordered."""

    def __init__(self, num_rows):
        self.keys = [[[] for _ in range(num_rows)] for _ in range(LAYERS)]
        self.values = [[[] for _ in range(num_rows)] for _ in range(LAYERS)]

    def attend(self, layer, query, key, value):
        out = []
        for row, (q, k, v) in enumerate(zip(query, key, value)):
            self.keys[layer][row].append(k.view(HEADS, DIM))
            self.values[layer][row].append(v.view(HEADS, DIM))
            keys = torch.stack(self.keys[layer][row], dim=1)
            values = torch.stack(self.values[layer][row], dim=1)
            out.append(attend(q.view(HEADS, 1, DIM), keys, values).flatten())
        return torch.stack(out)

    def select(self, order):
        for kept in (self.keys, self.values):
            for layer in range(LAYERS):
                kept[layer] = [list(kept[layer][row]) for row in order]


def step(cache, rows, num_rows):
    cache.add_position()
    for layer in range(LAYERS):
        query, key, value = torch.rand(3, num_rows, HEADS * DIM)
        found = cache.attend(layer, query, key, value)
        torch.testing.assert_close(found, rows.attend(layer, query, key, value))


@pytest.mark.parametrize("beams", [1, 4])
def test_equals_rows_that_copy_their_own_tokens(beams):
    torch.manual_seed(0)
    num_items = 3
    cache = BeamCache(LAYERS, HEADS, DIM, num_items, torch.zeros(num_items * beams, 1))
    rows = Rows(num_items * beams)
    items = list(range(num_items))
    for position in range(40):  # more than two blocks
        step(cache, rows, len(items) * beams)
        kept = [number for number in range(len(items)) if (position, number) != (17, 1)]
        order = [
            item * beams + int(torch.randint(beams, ())) for item in kept for _ in range(beams)
        ]
        rows.select(order)
        selected = torch.tensor(kept) if len(kept) < len(items) else None
        cache.select(torch.tensor(order), selected, beams)
        items = kept
    assert len(items) == 2


@pytest.mark.parametrize(
    ("order", "items", "beams"),
    [
        # each row becomes an item of its own
        ([1, 0, 2], [0, 0, 1], 1),
        ([3], [1], 1),
        # the rows of an item become more
        ([1, 1, 0, 2, 2, 3], None, 3),
        ([3, 2, 2, 3], [1], 4),
    ],
)
def test_the_number_of_rows_of_an_item_may_change(order, items, beams):
    torch.manual_seed(1)
    cache, rows = BeamCache(LAYERS, HEADS, DIM, 2, torch.zeros(4, 1)), Rows(4)
    for _ in range(3):
        step(cache, rows, 4)
        rows.select([1, 0, 3, 3])
        cache.select(torch.tensor([1, 0, 3, 3]), None, 2)
    rows.select(order)
    cache.select(torch.tensor(order), None if items is None else torch.tensor(items), beams)
    for _ in range(20):
        step(cache, rows, len(order))


def test_memory_that_was_never_written_does_not_reach_the_result(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda x, *s, **k: x.new_full(s, float("nan")))
    cache = BeamCache(1, HEADS, DIM, 1, torch.zeros(2, 1))
    cache.add_position()
    one = torch.rand(2, HEADS * DIM)
    cache.select(torch.tensor([0]), None, 1)
    cache.add_position()
    assert cache.attend(0, one[:1], one[:1], one[:1]).isfinite().all()
