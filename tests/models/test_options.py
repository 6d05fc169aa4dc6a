"""Options that a model cannot be built of are one line, which names the option."""

import pytest
from toy_data import (
    build_model,
    make_dictionary,
    story_task,
    toy_task,
    video_task,
    visual_story_task,
)

from fairseq_mm.errors import UserError

STORY = {"max_source_positions": 12, "max_target_positions": 12}
LANGUAGE = {"tokens_per_sample": 9}
TASKS = {
    "conv_story_tiny": lambda: story_task(),
    "gcnn_lm_tiny": lambda: toy_task(),
    "glac": lambda: visual_story_task(),
    "transtory": lambda: visual_story_task(),
    "transformer_captioner": lambda: toy_task(),
    "m_rnn": lambda: toy_task(),
    "sc_nlm": lambda: toy_task(structure_dictionary=make_dictionary()),
}
ALWAYS = {"conv_story_tiny": STORY, "gcnn_lm_tiny": LANGUAGE}


@pytest.mark.parametrize(
    ("arch", "options", "message"),
    [
        # one row for each kind of limit
        ("glac_tiny", {"slices": 0}, "--slices must be 1 or more, but is 0"),
        ("glac_tiny", {"dropout": 1.0}, r"--dropout must be below 1, but is 1\.0"),
        ("m_rnn_tiny", {"feature_dropout": -0.1}, r"--feature-dropout must be 0 or more, but is -"),
        ("glac_tiny", {"slice_noise": float("nan")}, "--slice-noise must be above 0, but is nan"),
        ("glac_tiny", {"slice_temperature": 1e-45}, "--slice-temperature must be 0.001 or more"),
        ("transtory_full_tiny", {"encoder_layers": -1}, "--encoder-layers must be 0 or more"),
        ("transtory_xl_tiny", {"model_dim": 7}, "--model-dim must be a multiple of 2, but is 7"),
        (
            "transtory_decoder_tiny",
            {"decoder_attention_heads": 3},
            r"--decoder-attention-heads must be a divisor of --embedding-dim \(8\), but is 3",
        ),
        ("vg_bart_tiny", {"fusion_heads": 4}, r"--fusion-heads must be a divisor of --fusion-dim"),
        ("gcnn_lm_tiny", {"max_positions": 2}, "--max-positions must be 3 or more, but is 2"),
        ("conv_story_tiny", {"max_source_positions": 2}, "--max-source-positions must be 3 or mo"),
        # options that do not fit together
        ("t5_tiny", {"relative_buckets": 6}, "--relative-buckets must be a multiple of 4"),
        ("t5_tiny", {"max_distance": 16}, r"less than twice --max-distance \(16\), but is 32"),
        ("vg_t5_tiny", {"fusion_encoder_layers": ""}, "--fusion-encoder-layers .* both empty"),
        ("vg_bart_tiny", {"fusion_encoder_layers": "3"}, "--fusion-encoder-layers must be .* '3'"),
        ("vg_bart_tiny", {"fusion_encoder_layers": "0"}, "--fusion-encoder-layers must be .* '0'"),
        ("vg_bart_tiny", {"fusion_decoder_layers": "1,1"}, "--fusion-decoder-layers must be .* '1"),
        ("vg_bart_tiny", {"fusion_encoder_layers": "1,"}, "--fusion-encoder-layers must be .* '1,"),
        (
            "vg_bart_tiny",
            {"compat": "released", "fusion_decoder_layers": "1"},
            "--compat released must be without --fusion-decoder-layers",
        ),
        ("vg_bart_tiny", {"video_encoder_heads": 2}, "must divide the feature dimension 5"),
        # lists of layers
        ("conv_story_tiny", {"decoder_layers": "[512, 4]"}, "--decoder-layers must be a list of"),
        ("conv_story_tiny", {"encoder_layers": "exit()"}, "--encoder-layers must be a list of"),
        (
            "conv_story_tiny",
            {"decoder_attention": "[True, True]"},
            "for each of the 3",
        ),
        ("conv_story_tiny", {"self_attention": "yes"}, "--self-attention must be True, False or"),
        ("conv_story_tiny", {"gated_attention": "1"}, "--gated-attention must be True or False"),
        ("conv_story_tiny", {"encoder_embed_dim": 12}, r"--decoder-embed-dim \(16\) must be equal"),
        (
            "conv_story_tiny",
            {"encoder_attention": "True"},
            "--encoder-attention must be False, --e",
        ),
        ("conv_story_tiny", {"project_input": "False"}, "--project-input True: this system has no"),
        ("conv_story_tiny", {"pretrained": "True"}, "--pretrained needs --pretrained-checkpoint"),
        ("conv_story_tiny", {"pretrained_checkpoint": "a.pt"}, "-checkpoint needs --pretrained Tr"),
        ("m_rnn", {"attention": "soft", "image_input": "both"}, "needs --image-input multimodal"),
        # a wrong option of the new model is said before what is wrong with the pretrained one
        (
            "conv_story_tiny",
            {"pretrained": "True", "pretrained_checkpoint": "a.pt", "decoder_layers": "[]"},
            "--decoder-layers must be a list",
        ),
    ],
)
def test_options_are_refused_in_one_line(arch, options, message):
    task = next((task for name, task in TASKS.items() if arch.startswith(name)), video_task)()
    with pytest.raises(UserError, match=message) as caught:
        build_model(arch, task, **{**ALWAYS.get(arch, {}), **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arch", "task", "message"),
    [
        ("sc_nlm_tiny", toy_task(), "does not fit the task .*: give --task multimodal_captioning"),
        ("vg_bart_tiny", video_task(feature_dim=0), "reads features of videos, but the task gives"),
        *(
            (arch, video_task(source_dictionary=make_dictionary(reverse=True)), "--joined-dictio")
            for arch in ("vg_bart_tiny", "t5_tiny", "pointer_generator_tiny", "mffg_transformer")
        ),
        ("vg_bart_tiny", visual_story_task(), "does not fit the task .*: give --task .*video_summ"),
    ],
)
def test_data_that_a_model_cannot_read_is_refused(arch, task, message):
    with pytest.raises(UserError, match=message):
        build_model(arch, task)
