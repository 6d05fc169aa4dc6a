"""Base classes of encoders and decoders."""

import copy
import gc
import weakref
from typing import Any

import torch

from fairseq_mm.models._bases import BatchFirstEncoder, IncrementalDecoder


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


def test_states_of_a_decoder_and_of_its_modules_are_reordered():
    seen = []

    class Part(torch.nn.Module):
        def reorder_incremental_state(self, state, order):
            seen.append((type(self).__name__, state, order.tolist()))

    class Decoder(IncrementalDecoder):
        reorder_incremental_state = Part.reorder_incremental_state

    decoder = Decoder(None)
    decoder.parts = torch.nn.ModuleList([Part(), torch.nn.Linear(1, 1)])
    copied = copy.deepcopy(decoder)
    for model in (decoder, decoder, copied):
        seen.clear()
        state = {"key": {}}
        model.reorder_incremental_state_scripting(state, torch.tensor([1, 0]))
        assert seen == [("Decoder", state, [1, 0]), ("Part", state, [1, 0])]
    # nothing keeps a decoder that is not used any more
    gc.disable()
    try:
        reference = weakref.ref(decoder)
        del decoder, model
        assert reference() is None
    finally:
        gc.enable()
