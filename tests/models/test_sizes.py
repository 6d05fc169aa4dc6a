"""Sizes that no model of visual stories can be built of are one line each."""

import pytest
from toy_data import build_model, visual_story_task

from fairseq_mm.errors import UserError


@pytest.mark.parametrize(
    ("arch", "options", "message"),
    [
        ("glac_tiny", {"slices": 0}, "--slices must be 1 or more, but is 0"),
        ("glac_tiny", {"hidden_dim": 0}, "--hidden-dim must be 1 or more, but is 0"),
        ("glac_tiny", {"embedding_dim": -1}, "--embedding-dim must be 1 or more, but is -1"),
        ("glac_tiny", {"decoder_layers": 0}, "--decoder-layers must be 1 or more, but is 0"),
        ("glac_tiny", {"dropout": 1.0}, r"--dropout must be 0 or more and below 1, but is 1\.0"),
        ("glac_tiny", {"embedding_dropout": -0.5}, r"--embedding-dropout must be .* is -0\.5"),
        ("transtory_decoder_tiny", {"decoder_layers": 0}, "--decoder-layers must be 1 or more"),
        (
            "transtory_decoder_tiny",
            {"decoder_attention_heads": 3},
            r"--decoder-attention-heads must divide --embedding-dim \(8\), but is 3",
        ),
        ("transtory_full_tiny", {"encoder_layers": -1}, "--encoder-layers must be 0 or more"),
        ("transtory_full_tiny", {"decoder_attention_heads": 0}, "-attention-heads must be 1 or m"),
        (
            "transtory_full_tiny",
            {"encoder_attention_heads": 5},
            "--encoder-attention-heads must divide --picture-dim",
        ),
        ("transtory_xl_tiny", {"memory_length": 0}, "--memory-length must be 1 or more, but is 0"),
        ("transtory_xl_tiny", {"segment_length": -1}, "--segment-length must be 0 or more"),
        ("transtory_xl_tiny", {"clamp_length": 0}, "--clamp-length must be 1 or more, but is 0"),
        ("transtory_xl_tiny", {"decoder_layers": 0}, "--decoder-layers must be 1 or more"),
        ("transtory_xl_tiny", {"head_dim": 0}, "--head-dim must be 1 or more, but is 0"),
        ("transtory_xl_tiny", {"model_dim": 7}, "--model-dim must be even, .* but is 7"),
    ],
)
def test_sizes_out_of_range_are_named(arch, options, message):
    with pytest.raises(UserError, match=f"^.*{message}"):
        build_model(arch, visual_story_task(), **options)


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("glac_tiny", {"slices": 3, "picture_dim": 5, "encoder_hidden_dim": 1}),
        ("transtory_full_tiny", {"encoder_layers": 0, "dropout": 0.0}),
        ("transtory_xl_tiny", {"memory_length": 1, "segment_length": 0, "head_dim": 1}),
    ],
)
def test_the_smallest_sizes_are_allowed(arch, options):
    assert build_model(arch, visual_story_task(), **options) is not None
