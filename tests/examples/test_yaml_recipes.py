"""Recipes in YAML: configured as the shell recipes beside them, run by fairseq-hydra-train."""

import logging
import sys
import warnings
from typing import Any, NamedTuple

import fairseq_cli.hydra_train
import pytest
import torch
from fairseq import checkpoint_utils
from hydra.core.global_hydra import GlobalHydra
from toy_data import (
    PACKAGE,
    make_captions_folder,
    make_videos_folder,
    make_visual_stories_folder,
    run_fairseq,
)
from toy_hydra import composed_config, parsed_config, plain
from toy_story_models import make_story_folder

import fairseq_mm
from fairseq_mm.inference.embedder import load_embedder

EXAMPLES = PACKAGE.parent / "examples"
# fairseq-train has a default scorer there, of which training makes nothing
ALLOWED = {"scoring"}
OF_THE_MACHINE = ("distributed_world_size", "distributed_num_procs")  # numbers of GPUs
PATHS = {"common.user_dir": str(PACKAGE), "task.data": "data", "checkpoint.save_dir": "saved"}


class Recipe(NamedTuple):
    """
    Attributes:
        script: the shell recipe.
        arguments: of it, after data and folder.
        paths: of the configuration, beside data and folder.
        variables: of the shell recipe's environment.
        folder: makes toy data.
        tiny: sizes for them.
        part: of the toy data that is trained on.
        pretrained: options of the pretrained model.
    """

    script: str
    arguments: tuple[str, ...]
    folder: Any
    tiny: dict[str, Any]
    paths: dict[str, str] = {}  # noqa: RUF012
    variables: dict[str, str] = {}  # noqa: RUF012
    part: str = "."
    pretrained: dict[str, float] = {}  # noqa: RUF012


STORY = {"decoder_embed_dim": 8, "decoder_out_embed_dim": 6, "decoder_layers": "'[(12,4)]'"}
BART = {"encoder_embed_dim": 8, "encoder_ffn_embed_dim": 12, "decoder_ffn_embed_dim": 10}
RECIPES = {
    "multimodal_captioning/m_rnn": Recipe(
        "train_m_rnn",
        (),
        make_captions_folder,
        {"embedding_dim": 8, "hidden_dim": 12, "multimodal_dim": 20},
    ),
    "multimodal_captioning/vse": Recipe(
        "train_vse", (), make_captions_folder, {"word_dim": 6, "embed_dim": 8}
    ),
    "hierarchical_story/conv_story_gated": Recipe(
        "2_train_seq2seq",
        (),
        make_story_folder,
        {**STORY, "encoder_embed_dim": 8, "encoder_layers": "'[(8,3)]'"},
    ),
    "hierarchical_story/gcnn_lm_self_att": Recipe(
        "1_train_prompt_lm", (), make_story_folder, STORY, part="prompts"
    ),
    "visual_storytelling/glac": Recipe(
        "1_train",
        ("glac",),
        make_visual_stories_folder,
        {
            "picture_dim": 6,
            "encoder_hidden_dim": 4,
            "glocal_dim": 9,
            "embedding_dim": 5,
            "hidden_dim": 7,
        },
    ),
    "video_summarization/vg_bart_base": Recipe(
        "1_train",
        ("vg_bart_fg_vtf",),
        make_videos_folder,
        {**BART, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "fusion_dim": 8}
        | {"video_encoder_heads": 1, "video_encoder_ffn_dim": 7},
        paths={"checkpoint.finetune_from_model": "model.pt"},
        variables={"PRETRAINED": "model.pt"},
        pretrained={"dropout": 0.12, "attention_dropout": 0.23, "activation_dropout": 0.34},
    ),
}


def flags_of(options):
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())


def test_every_configuration_is_tested():
    files = EXAMPLES.glob("*/config/*.yaml")
    assert {f"{file.parents[1].name}/{file.stem}" for file in files} == set(RECIPES)


@pytest.mark.parametrize("recipe", RECIPES)
def test_configuration_is_that_of_the_shell_recipe(recipe, run_recipe, monkeypatch):
    example, name = recipe.split("/")
    script, arguments, paths = RECIPES[recipe].script, RECIPES[recipe].arguments, {**PATHS}
    paths.update(RECIPES[recipe].paths)
    paths.update({f"model.{name}": x for name, x in RECIPES[recipe].pretrained.items()})
    *_, call = run_recipe(
        *(EXAMPLES / example, script, "data", "saved", *arguments),
        prints={"fairseq-mm": flags_of(RECIPES[recipe].pretrained)},
        **RECIPES[recipe].variables,
    )
    assert call[0] == "fairseq-train"
    call[call.index("--user-dir") + 1] = str(PACKAGE)
    expected = plain(parsed_config(call[1:]))
    overrides = [f"{key}={value}" for key, value in paths.items()]
    found = plain(composed_config(monkeypatch, EXAMPLES / example / "config", name, overrides))
    assert found.keys() == expected.keys()
    for cfg in (found, expected):
        for key in OF_THE_MACHINE:
            del cfg["distributed_training"][key]
    for section in expected.keys() - ALLOWED:
        assert found[section] == expected[section], section


@pytest.fixture
def hydra_train(monkeypatch, tmp_path):
    """Runs ``fairseq-hydra-train`` in this process, with the package as its user_dir."""
    handlers = {name: logging.getLogger(name).handlers[:] for name in ("fairseq", "fairseq_cli")}

    def run(folder, name, **overrides):
        vars(checkpoint_utils.save_checkpoint).pop("best", None)  # of an earlier training
        monkeypatch.chdir(tmp_path)
        options = [f"{key}={value}" for key, value in overrides.items()]
        argv = ["fairseq-hydra-train", "--config-dir", str(folder), "--config-name", name]
        monkeypatch.setattr(sys, "argv", [*argv, *options])
        GlobalHydra.instance().clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fairseq_cli.hydra_train.cli_main()

    yield run
    for name, before in handlers.items():
        logging.getLogger(name).handlers[:] = before


@pytest.mark.parametrize("recipe", RECIPES)
def test_configuration_trains_a_model_that_loads(recipe, hydra_train, tmp_path, monkeypatch):
    example, name = recipe.split("/")
    data = RECIPES[recipe].folder(tmp_path / "data") / RECIPES[recipe].part
    hydra_train(
        EXAMPLES / example / "config",
        name,
        **{
            "common.user_dir": PACKAGE,
            "common.cpu": True,
            "task.data": data,
            "dataset.num_workers": 0,
            "optimization.max_update": 2,
            "optimization.update_freq": "[1]",
            "distributed_training.distributed_world_size": 1,
            "checkpoint.save_dir": "saved",  # relative: hydra stays where it was called
            **dict.fromkeys(RECIPES[recipe].paths, "null"),
            **{f"model.{key}": value for key, value in RECIPES[recipe].pretrained.items()},
            **{f"+model.{key}": value for key, value in RECIPES[recipe].tiny.items()},
        },
    )
    saved = tmp_path / "saved"
    state = torch.load(saved / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 2
    assert state["cfg"]["model"]["_name"] == name.replace("vse", "vse_lstm")
    assert {path.name for path in tmp_path.iterdir()} == {"data", "saved"}
    if example == "multimodal_captioning" and name == "vse":
        assert load_embedder(saved)
        return
    fairseq_mm.from_pretrained(saved)
    if name == "gcnn_lm_self_att":
        return
    arguments = ["--path", saved / "checkpoint_last.pt", "--task", example]
    run_fairseq(monkeypatch, "generate", data, *arguments, "--gen-subset", "valid", "--cpu")
