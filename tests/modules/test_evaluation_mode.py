"""Evaluation mode for a while: what it switches off, and what it restores."""

import contextlib

import pytest
import torch
from torch import nn

from fairseq_mm.criterions.self_critical import evaluation_mode


@pytest.mark.parametrize("has_gradients", [False, True])
def test_parts_get_their_own_mode_back(has_gradients):
    recurrent = nn.GRU(3, 3, num_layers=2, dropout=0.5)
    model = nn.ModuleList([recurrent, nn.Dropout(0.5), nn.Dropout(0.5)]).train()
    model[2].eval()
    x = torch.randn(4, 1, 3)
    with contextlib.suppress(KeyError), evaluation_mode(model, has_gradients=has_gradients):
        # cuDNN computes gradients of recurrent layers in training mode alone
        assert recurrent.training == has_gradients
        assert not model[1].training
        assert torch.equal(recurrent(x)[0], recurrent(x)[0])
        raise KeyError
    assert [part.training for part in model] == [True, True, False]
    assert recurrent.dropout == 0.5
