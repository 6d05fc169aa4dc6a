"""Single steps of recurrent layers, with packed and other weights, against the equations."""

import pytest
import torch
from torch import nn

from fairseq_mm.modules.packed_weights import can_pack, pack_weights
from fairseq_mm.modules.recurrent_steps import step_gru, step_lstm

SIZES = (400, 256)  # large enough to be packed


def inputs():
    torch.manual_seed(1)
    return torch.randn(5, SIZES[0]), torch.randn(5, SIZES[1]), torch.randn(5, SIZES[1])


def naive_lstm(cell, x, h, c):
    products = x @ cell.weight_ih.t() + cell.bias_ih + h @ cell.weight_hh.t() + cell.bias_hh
    i, f, g, o = products.chunk(4, dim=1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def naive_gru(cell, x, h):
    r, z, n = (x @ cell.weight_ih.t() + cell.bias_ih).chunk(3, dim=1)
    hr, hz, hn = (h @ cell.weight_hh.t() + cell.bias_hh).chunk(3, dim=1)
    r, z = (r + hr).sigmoid(), (z + hz).sigmoid()
    return (1 - z) * (n + r * hn).tanh() + z * h


@pytest.fixture
def is_packed(monkeypatch, request):
    """With the parameter True, weights are packed and PyTorch's cells may not be called."""
    if request.param:
        if not can_pack():
            pytest.skip("this PyTorch packs no weights")

        def refuse(*args, **kwargs):
            raise AssertionError("packed weights are not used")

        monkeypatch.setattr(torch, "lstm_cell", refuse)
        monkeypatch.setattr(nn.GRUCell, "forward", refuse)
    return request.param


@torch.no_grad()
@pytest.mark.parametrize("is_packed", [False, True], indirect=True)
def test_lstm(is_packed):
    cell, (x, h, c) = nn.LSTMCell(*SIZES), inputs()
    expected = naive_lstm(cell, x, h, c)
    if is_packed:
        pack_weights(cell)
    weights = cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
    before = h.clone(), c.clone()
    torch.testing.assert_close(step_lstm(x, h, c, *weights), expected)
    # a search may read the states before the step again
    assert torch.equal(h, before[0])
    assert torch.equal(c, before[1])


@torch.no_grad()
@pytest.mark.parametrize("is_packed", [False, True], indirect=True)
def test_gru(is_packed):
    cell, (x, h, _) = nn.GRUCell(*SIZES), inputs()
    expected = naive_gru(cell, x, h)
    if is_packed:
        pack_weights(cell)
    before = h.clone()
    torch.testing.assert_close(step_gru(cell, x, h), expected)
    assert torch.equal(h, before)
