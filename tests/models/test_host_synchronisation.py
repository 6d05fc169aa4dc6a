"""How often a model waits for a GPU: PyTorch tells in its debug mode."""

import warnings

import pytest
import torch
from toy_data import build_model, visual_story_task

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")


def test_transtory_xl_waits_once_for_the_layout_of_its_sentences():
    model = build_model("transtory_xl_tiny", visual_story_task()).cuda().eval()
    separator = model.decoder.separator
    tokens = torch.tensor([[2, 5, 6, separator, 7, separator, 8, 9, 5, 6]] * 3, device="cuda")
    features = torch.randn(3, 5, 5, device="cuda")
    padding_mask = torch.zeros(3, 5, dtype=torch.bool, device="cuda")
    encoder_out = model.encoder(features, padding_mask)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.decoder(tokens, encoder_out=encoder_out)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sum("synchroniz" in str(warning.message) for warning in caught) <= 1
