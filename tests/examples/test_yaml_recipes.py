"""Recipes in YAML: configured as the shell recipes beside them."""

from typing import NamedTuple

import pytest
from toy_data import (
    PACKAGE,
)
from toy_hydra import composed_config, parsed_config, plain

EXAMPLES = PACKAGE.parent / "examples"
# fairseq-train has a default scorer there, of which training makes nothing
ALLOWED = {"scoring"}
OF_THE_MACHINE = ("distributed_world_size", "distributed_num_procs")  # numbers of GPUs
PATHS = {"common.user_dir": str(PACKAGE), "task.data": "data", "checkpoint.save_dir": "saved"}


class Recipe(NamedTuple):
    """
    Attributes:
        script: Name of the shell recipe.
        arguments: Its arguments after the data and the output folder.
        paths: Further paths of the configuration.
        variables: Variables of the shell recipe's environment.
        pretrained: Options of the pretrained model.
    """

    script: str
    arguments: tuple[str, ...] = ()
    paths: dict[str, str] = {}  # noqa: RUF012
    variables: dict[str, str] = {}  # noqa: RUF012
    pretrained: dict[str, float] = {}  # noqa: RUF012


RECIPES = {
    "multimodal_captioning/m_rnn": Recipe("train_m_rnn"),
    "multimodal_captioning/vse": Recipe("train_vse"),
    "hierarchical_story/conv_story_gated": Recipe("2_train_seq2seq"),
    "hierarchical_story/gcnn_lm_self_att": Recipe("1_train_prompt_lm"),
    "visual_storytelling/glac": Recipe("1_train", ("glac",)),
    "video_summarization/vg_bart_base": Recipe(
        "1_train",
        ("vg_bart_fg_vtf",),
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
