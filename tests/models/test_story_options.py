"""Options of the story and the language models that cannot be built are one line each."""

import pytest
from toy_data import build_model, story_task, toy_task

from fairseq_mm.errors import UserError

STORY = {"max_source_positions": 12, "max_target_positions": 12}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder_layers": "[512, 4]"}, r"--decoder-layers must be a list of \(channels, width\)"),
        ({"encoder_layers": "exit()"}, r"--encoder-layers must be a list of \(channels, width\)"),
        (
            {"decoder_attention": "[True, True]"},
            r"--decoder-attention must have one entry for each of the 3 layers, but .* has 2\.",
        ),
        (
            {"self_attention": "[True] * 4"},
            r"--self-attention must have one entry for each of the 3 layers, but .* has 4\.",
        ),
        ({"self_attention": "yes"}, "--self-attention must be True, False or a list of them"),
        ({"gated_attention": "1"}, "--gated-attention must be True or False, but is '1' instead"),
        ({"downsample": "[True]"}, "--downsample must be True or False"),
        (
            {"multihead_self_attention_nheads": 5},
            r"--multihead-self-attention-nheads must divide --decoder-embed-dim \(16\), but is 5\.",
        ),
        ({"multihead_self_attention_nheads": 0}, r"must divide --decoder-embed-dim \(16\), but is"),
        (
            {"multihead_attention_nheads": 3},
            r"--multihead-attention-nheads must divide --decoder-e",
        ),
        ({"multihead_attention_nheads": -1}, "--multihead-attention-nheads must divide"),
        (
            {"encoder_embed_dim": 12},
            r"--encoder-embed-dim \(12\) and --decoder-embed-dim \(16\) must be equal",
        ),
        ({"encoder_embed_dim": 0, "decoder_embed_dim": 0}, "--encoder-embed-dim must be 1 or more"),
        ({"decoder_out_embed_dim": -3}, "--decoder-out-embed-dim must be 1 or more, but is -3"),
        ({"dropout": 1.0}, r"--dropout must be 0 or more and below 1, but is 1\.0\."),
        ({"dropout": -0.1}, "--dropout must be 0 or more and below 1"),
        ({"max_source_positions": 2}, "--max-source-positions must be 3 or more, but is 2 instead"),
        ({"max_target_positions": None}, "--max-target-positions must be 3 or more, but is None"),
        ({"encoder_attention": "True"}, "--encoder-attention must be False and --encoder-attenti"),
        ({"encoder_attention": "[False]"}, "--encoder-attention must have one entry for each of t"),
        ({"encoder_attention_nheads": 2}, "--encoder-attention must be False and --encoder-atten"),
        ({"project_input": "False"}, "--project-input must be True: "),
        ({"pretrained": "True"}, "--pretrained True needs --pretrained-checkpoint PATH"),
        ({"pretrained": "maybe"}, "--pretrained must be True or False, but is 'maybe' instead"),
        (
            {"pretrained_checkpoint": "a.pt"},
            "--pretrained-checkpoint a.pt: does nothing without --pretrained True or --arch conv",
        ),
        # a wrong option of the new model is said before what is wrong with the pretrained one
        (
            {"pretrained": "True", "pretrained_checkpoint": "a.pt", "decoder_layers": "[]"},
            "--decoder-layers must be a list",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_options_of_a_story_model(options, message):
    with pytest.raises(UserError, match=message):
        build_model("conv_story_tiny", story_task(), **{**STORY, **options})


def test_a_fusion_model_needs_a_pretrained_one():
    with pytest.raises(UserError, match="--pretrained True needs --pretrained-checkpoint PATH"):
        build_model("conv_story_fusion", story_task(), **STORY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_positions": 2}, "--max-positions must be 3 or more, but is 2 instead"),
        ({"max_positions": 0}, "--max-positions must be 3 or more, but is 0 instead"),
        ({"decoder_layers": "(512, 4)"}, "--decoder-layers must be a list"),
        ({"self_attention": "[True]"}, "--self-attention must have one entry for each of the 3"),
        ({"multihead_self_attention_nheads": 3}, "must divide --decoder-embed-dim"),
        ({"dropout": 2}, "--dropout must be 0 or more and below 1, but is 2"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_options_of_a_language_model(options, message):
    with pytest.raises(UserError, match=message):
        build_model("gcnn_lm_tiny", toy_task(), **{"tokens_per_sample": 9, **options})
