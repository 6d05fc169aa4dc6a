"""Sizes that no model of visual stories can be built of are one line each."""

import pytest
from toy_data import build_model, visual_story_task

from fairseq_mm.errors import UserError


@pytest.mark.parametrize(
    ("arch", "options", "message"),
    [
        ("glac_tiny", {"slices": 0}, "--slices must be 1 or more, but is 0"),
        ("glac_tiny", {"dropout": 1.0}, r"--dropout must be 0 or more and below 1, but is 1\.0"),
        (
            "transtory_decoder_tiny",
            {"decoder_attention_heads": 3},
            r"--decoder-attention-heads must be a divisor of --embedding-dim \(8\), but is 3",
        ),
        ("transtory_full_tiny", {"encoder_layers": -1}, "--encoder-layers must be 0 or more"),
        ("transtory_xl_tiny", {"segment_length": -1}, "--segment-length must be 0 or more"),
        ("transtory_xl_tiny", {"model_dim": 7}, "--model-dim must be a multiple of 2, but is 7"),
    ],
)
def test_sizes_out_of_range_are_named(arch, options, message):
    with pytest.raises(UserError, match=f"^.*{message}"):
        build_model(arch, visual_story_task(), **options)
