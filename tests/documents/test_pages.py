"""What the documentation names is there: commands, options, recipes, architectures and files."""

import argparse
import dataclasses
import importlib
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY
from pages import DOCS, PAGES, ROOT, RUN, SHOWN, blocks_of, commands_of, name_of
from parsers import FAIRSEQ_PARSERS, parse_program
from toy_data import PACKAGE
from toy_hydra import composed_config

from fairseq_mm.cli.main import SUBCOMMANDS
from fairseq_mm.generation.config import GenerationConfig

EXAMPLES = ROOT / "examples"
REPOSITORY = "https://github.com/fairseq-mm/fairseq_mm"
SOURCED = {"sizes.sh", "steps.sh", "systems.sh"}
RECIPES = {path.name: path for path in EXAMPLES.glob("*/*.sh") if path.name not in SOURCED}
TASK_PAGES = sorted((DOCS / "tasks").glob("*.md"))
OWN_TASKS = {
    "hierarchical_story",
    "multimodal_captioning",
    "video_summarization",
    "visual_storytelling",
}


def documented(*programs):
    return [
        pytest.param(words, id=f"{name_of(page)}-{number}-{' '.join(words[:2])}")
        for page in PAGES
        for number, words in enumerate(commands_of(page))
        if words[0] in programs
    ]


def test_every_block_is_run_or_shown():
    for page in PAGES:
        for block in blocks_of(page):
            assert block.language in RUN + SHOWN, block.name
            assert block.needs is None or block.language in RUN, block.name
        assert page.read_text().count("\n```") == 2 * len(blocks_of(page)), page
        assert page.read_text().count("needs:") == sum(
            block.needs is not None for block in blocks_of(page)
        ), page


@pytest.mark.parametrize("words", documented("fairseq-mm"))
def test_documented_command_of_ours_parses(words):
    assert words[1] in SUBCOMMANDS
    module = importlib.import_module(f"fairseq_mm.cli.{words[1].replace('-', '_')}")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    parser.parse_args(words[2:])


@pytest.mark.parametrize("words", documented(*FAIRSEQ_PARSERS))
def test_documented_command_of_fairseq_parses(words):
    place = words.index("--user-dir") + 1
    assert words[place] in ("fairseq_mm", "$(fairseq-mm user-dir)")
    arguments = [*words[1:place], str(PACKAGE), *words[place + 1 :]]
    parser = FAIRSEQ_PARSERS[words[0]]()
    parsed = options.parse_args_and_arch(parser, arguments)
    assert parsed.task in (*OWN_TASKS, "language_modeling")
    if "--eval-gen-args" in words:
        assert json.loads(parsed.eval_gen_args)


@pytest.mark.parametrize("words", documented("fairseq-hydra-train"))
def test_documented_command_of_hydra_composes(words, monkeypatch):
    assert (words[1], words[3]) == ("--config-dir", "--config-name")
    folder, name, overrides = ROOT / words[2], words[4], words[5:]
    assert "common.user_dir=$PWD/fairseq_mm" in overrides
    if "$(fairseq-mm" in overrides:  # options that a checkpoint gives come last
        overrides = overrides[: overrides.index("$(fairseq-mm")]
    overrides = [word.replace("$PWD", str(ROOT)) for word in overrides]
    cfg = composed_config(monkeypatch, folder, name, overrides)
    assert Path(cfg.common.user_dir) == PACKAGE
    assert "data-bin/" in cfg.task.data


SCRIPTS = sorted(
    {
        tuple(x)
        for page in PAGES
        for x in commands_of(page)
        if x[:1] == ["python"] and x[1].startswith("scripts/")
    }
)


@pytest.mark.parametrize("words", SCRIPTS, ids=lambda words: " ".join(words[1:3]))
def test_documented_scripts_parse(words, started_python):
    """Up to the release, which is not there."""
    done = subprocess.run(
        [started_python, words[1], "no_such_folder", *words[3:]],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "no_such_folder" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("words", documented("python"))
def test_documented_programs_exist_and_those_of_examples_parse(words, monkeypatch):
    assert words[1].startswith(("benchmarks/", "examples/", "scripts/"))
    assert (ROOT / words[1]).is_file()
    if words[1].startswith("examples/"):
        parse_program(words, monkeypatch)


LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", *sorted(EXAMPLES.rglob("README.md"))]


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_and_paths_lead_somewhere(page):
    text = page.read_text("utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    links = [page.parent / link for link in links]
    links += [ROOT / path for path in re.findall(rf"\({REPOSITORY}/blob/main/([^)#]+)", text)]
    paths = re.findall(
        r"(?<![\w/.])((?:scripts|benchmarks|examples|tests|fairseq_mm)/[\w/]+\.\w+)", text
    )
    named = [*links, *(ROOT / path for path in paths)]
    assert [p for p in named if not p.exists() and "NAME" not in p.name] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_documented_recipes_are_there_and_take_their_arguments(page):
    """``NAME.sh ARGUMENT ...``, after variables, with no fewer than the script asks for."""
    calls = [*commands_of(page)]
    calls += [
        shlex.split(x) for x in re.findall(r"^\| .* \| `(\w+\.sh .*)` \|$", page.read_text(), re.M)
    ]
    for words in calls:
        names = [i for i, word in enumerate(words) if word.endswith(".sh")]
        if not names:
            continue
        recipe = ROOT / words[names[0]]
        if not recipe.exists():  # named without its folder
            recipe = RECIPES[recipe.name]
        usage = recipe.read_text().splitlines()[1].split(f"{recipe.name} ")[1]
        required = usage.split(" [")[0].split()
        assert len(words) - names[0] - 1 >= len(required)


def test_every_architecture_is_documented():
    text = (DOCS / "index.md").read_text("utf-8")
    overview = set(re.findall(r"`(\w+)`", text))
    pages = [page.read_text("utf-8") for page in TASK_PAGES]
    named = {name for page in pages for name in re.findall(r"\w+", page)}
    ours = {
        name
        for name, cls in ARCH_MODEL_REGISTRY.items()
        if cls.__module__.startswith("fairseq_mm.")
    }
    assert len(ours) > 50
    assert sorted(ours - overview) == []
    assert sorted(ours - named) == []


def test_every_option_of_generation_is_documented():
    page = (DOCS / "generation.md").read_text("utf-8")
    fields = {field.name for field in dataclasses.fields(GenerationConfig)}
    fields -= {"constraints", "max_len_a"}
    assert [name for name in sorted(fields) if f"`{name}`" not in page] == []
