"""Base classes of encoders and decoders."""

from typing import Any

import torch

from fairseq_mm.models._bases import BatchFirstEncoder


def test_rows_of_an_encoders_output_are_reordered_and_none_stays_none():
    x = torch.arange(6).view(3, 2)
    encoder_out: Any = {"mask": [None], "layers": [x, x + 6], "unused": []}
    encoder = BatchFirstEncoder()
    order = torch.tensor([2, 0, 0, 1])
    reordered = encoder.reorder_encoder_out(encoder_out, order)
    assert (reordered["mask"], reordered["unused"]) == ([None], [])
    for before, after in zip(encoder_out["layers"], reordered["layers"]):
        assert torch.equal(after, before[order])
    assert encoder.reorder_encoder_out(encoder_out, torch.arange(3)) is encoder_out
    assert encoder.reorder_encoder_out({"mask": [None]}, order) == {"mask": [None]}
