"""Configurations that the tests compose quickly are hydra's, to the last value."""

import json

import pytest
from fairseq import options
from fairseq.dataclass import utils
from quick_configuration import compose, compose_by_hydra, initialize_by_hydra, install
from toy_hydra import plain

COMMANDS = {
    "captions": (
        *("--task", "multimodal_captioning", "--arch", "m_rnn_tiny", "--optimizer", "adam"),
        *("--criterion", "cross_entropy", "--adam-betas", "(0.8, 0.9)", "--lr", "0.1,0.01"),
        *("--eval-gen", "--eval-gen-args", json.dumps({"beam": 2, "prefix": "it's, {a}=b: \\"})),
    ),
    "stories of fairseq": (
        *("--task", "hierarchical_story", "--arch", "fconv_self_att_wp", "--optimizer", "nag"),
        *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
        *("--decoder-attention", "[True, False]", "--clip-norm", "1", "--update-freq", "2,1"),
    ),
    "summaries": (
        *("--task", "video_summarization", "--arch", "vg_bart_tiny", "--criterion"),
        *("coverage_cross_entropy", "--optimizer", "adam_parameter_groups", "--added-lr", "1e-3"),
        *("--lr-scheduler", "epoch_decay", "--ddp-backend", "legacy_ddp", "--log-file", ""),
    ),
}


def configure(args):
    """The configuration by hydra, and the quick one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "initialize", initialize_by_hydra)
        patch.setattr(utils, "compose", compose_by_hydra)
        expected = plain(utils.convert_namespace_to_omegaconf(args))
        install()
        return expected, plain(utils.convert_namespace_to_omegaconf(args))


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_training_is_configured_as_hydra_does(arguments):
    changed = (*arguments, "--max-update", "3", "--lr", "0.7,0.1", "--no-progress-bar")
    first, second = (
        options.parse_args_and_arch(options.get_training_parser(), ["data", *words])
        for words in (arguments, changed)
    )
    expected, found = configure(first)
    assert found == expected
    assert found["task"]["data"] == "data"
    expected, other = configure(second)
    assert other == expected
    assert other["optimization"]["max_update"] == 3
    assert plain(utils.convert_namespace_to_omegaconf(first)) == found


def test_generation_is_configured_as_hydra_does():
    arguments = ("data", "--task", "video_summarization", "--path", "a.pt:b.pt", "--sampling")
    args = options.parse_args_and_arch(options.get_generation_parser(), list(arguments))
    expected, found = configure(args)
    assert found == expected


def test_what_hydra_refuses_is_refused():
    for refused in ("optimization.no_such_option=1", "optimization.max_update=many"):
        name = refused.partition("=")[0].partition(".")[2]
        with pytest.raises(Exception, match=name):
            compose("config", overrides=["task=translation", refused], strict=False)
