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
            "--decoder-attention must be a list of one entry for each of the 3 layers",
        ),
        (
            {"self_attention": "[True] * 4"},
            "--self-attention must be a list of one entry for each of the 3 layers",
        ),
        ({"self_attention": "yes"}, "--self-attention must be True, False or a list of them"),
        ({"gated_attention": "1"}, "--gated-attention must be True or False, but is '1' instead"),
        ({"downsample": "[True]"}, "--downsample must be True or False"),
        (
            {"multihead_self_attention_nheads": 5},
            r"--multihead-self-attention-nheads must be a divisor of --decoder-embed-dim \(16\)",
        ),
        ({"multihead_attention_nheads": -1}, "--multihead-attention-nheads must be 1 or more"),
        (
            {"encoder_embed_dim": 12},
            r"--encoder-embed-dim \(12\) and --decoder-embed-dim \(16\) must be equal",
        ),
        ({"decoder_out_embed_dim": -3}, "--decoder-out-embed-dim must be 1 or more, but is -3"),
        ({"dropout": 1.0}, "--dropout must be 0 or more and below 1"),
        ({"max_source_positions": 2}, "--max-source-positions must be 3 or more, but is 2"),
        ({"encoder_attention": "True"}, "--encoder-attention must be False, --encoder-attention-n"),
        (
            {"encoder_attention": "[False]"},
            "--encoder-attention must be a list of one entry for each",
        ),
        ({"project_input": "False"}, "--project-input True: this system has nothing else"),
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_positions": 2}, "--max-positions must be 3 or more, but is 2"),
        ({"dropout": 2}, "--dropout must be 0 or more and below 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_options_of_a_language_model(options, message):
    with pytest.raises(UserError, match=message):
        build_model("gcnn_lm_tiny", toy_task(), **{"tokens_per_sample": 9, **options})
