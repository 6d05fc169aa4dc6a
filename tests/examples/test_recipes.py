"""The recipes run as a user runs them, and the documentation's commands are commands."""

import argparse
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY
from toy_data import PACKAGE, make_captions_folder
from toy_hydra import composed_config
from toy_structures import write_text_and_tags

from fairseq_mm.cli.main import SUBCOMMANDS, main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.models.conv_story import ConvStoryModel
from fairseq_mm.models.gcnn_lm import GcnnLmModel
from fairseq_mm.models.glac import GlacModel
from fairseq_mm.models.hierarchical_attention_rnn import HierarchicalAttentionRnnModel
from fairseq_mm.models.hierarchical_attention_transformer import (
    HierarchicalAttentionTransformerModel,
)
from fairseq_mm.models.lbl import LblModel
from fairseq_mm.models.m_rnn import MRnnModel
from fairseq_mm.models.mffg_rnn import MffgRnnModel
from fairseq_mm.models.mffg_transformer import MffgTransformerModel
from fairseq_mm.models.mlbl_b import MlblBModel
from fairseq_mm.models.mlbl_f import MlblFModel
from fairseq_mm.models.pointer_generator import PointerGeneratorModel
from fairseq_mm.models.sc_nlm import ScNlmModel
from fairseq_mm.models.t5 import T5Model
from fairseq_mm.models.transtory_decoder import TranstoryDecoderModel
from fairseq_mm.models.transtory_full import TranstoryFullModel
from fairseq_mm.models.transtory_xl import TranstoryXLModel
from fairseq_mm.models.vg_bart import VgBartModel
from fairseq_mm.models.vg_t5 import VgT5Model
from fairseq_mm.models.vse import VseModel

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
README = ROOT / "README.md"
PAGES = [README, *sorted(EXAMPLES.glob("*/README.md"))]
SOURCED = {"sizes.sh", "systems.sh"}
RECIPES = sorted(path for path in EXAMPLES.glob("*/*.sh") if path.name not in SOURCED)
CAPTIONING = EXAMPLES / "multimodal_captioning"
ARCHITECTURES = {
    "multimodal_captioning": [MRnnModel, VseModel, LblModel, MlblBModel, MlblFModel, ScNlmModel],
    "hierarchical_story": [ConvStoryModel, GcnnLmModel],
    "visual_storytelling": [
        GlacModel,
        TranstoryDecoderModel,
        TranstoryFullModel,
        TranstoryXLModel,
    ],
    "video_summarization": [
        VgBartModel,
        VgT5Model,
        T5Model,
        PointerGeneratorModel,
        HierarchicalAttentionRnnModel,
        HierarchicalAttentionTransformerModel,
        MffgRnnModel,
        MffgTransformerModel,
    ],
}
BIN = Path(sys.executable).parent
FAIRSEQ_PARSERS = {
    "fairseq-train": lambda: options.get_training_parser("translation"),
    "fairseq-generate": lambda: options.get_generation_parser(default_task="translation"),
    "fairseq-validate": lambda: options.get_validation_parser("translation"),
}


def commands_of(page):
    """Arguments of each command in a page's bash blocks, without what the shell takes itself.

    Variables that are set for a command alone come first.
    """
    for block in re.findall(r"^```bash\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
        for line in re.sub(r"\\\n|(?<=\|)\n", " ", block).splitlines():
            words = shlex.split(line, comments=True)
            ends = [i for i, word in enumerate(words) if re.fullmatch(r"\d?>|\||&&|\d>&\d", word)]
            if words:
                yield words[: min(ends, default=len(words))]


def documented(*programs):
    return [
        pytest.param(words, id=f"{page.parent.name}-{number}-{' '.join(words[:2])}")
        for page in PAGES
        for number, words in enumerate(commands_of(page))
        if words[0] in programs
    ]


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
    assert parsed.task in (*ARCHITECTURES, "language_modeling")
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
        if x[:1] == ["python"] and not x[1].startswith("benchmarks/")
    }
)


@pytest.mark.parametrize("words", SCRIPTS, ids=lambda words: " ".join(words[1:3]))
def test_documented_scripts_parse(words):
    """Up to the release, which is not there."""
    assert words[1].startswith("scripts/")
    done = subprocess.run(
        [sys.executable, words[1], "no_such_folder", *words[3:]],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "no_such_folder" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_links_and_paths_lead_somewhere(page):
    text = page.read_text("utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert links
    paths = re.findall(r"\b((?:scripts|benchmarks|examples|tests|fairseq_mm)/[\w/]+\.\w+)", text)
    named = [page.parent / link for link in links] + [ROOT / path for path in paths]
    placeholders = ("NAME.py", "test_NAME.py")
    assert [p for p in named if not p.exists() and p.name not in placeholders] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_documented_recipes_are_there_and_take_their_arguments(page):
    """``NAME.sh ARGUMENT ...``, after variables, with no fewer than the script asks for."""
    recipes = {recipe.name: recipe for recipe in RECIPES}
    calls = [*commands_of(page)]
    calls += [
        shlex.split(x) for x in re.findall(r"^\| .* \| `(\w+\.sh .*)` \|$", page.read_text(), re.M)
    ]
    for words in calls:
        names = [i for i, word in enumerate(words) if word.endswith(".sh")]
        if not names:
            continue
        recipe = recipes[Path(words[names[0]]).name]
        usage = recipe.read_text().splitlines()[1].split(f"{recipe.name} ")[1]
        required = usage.split(" [")[0].split()
        assert len(words) - names[0] - 1 >= len(required)


def test_every_command_and_architecture_is_documented():
    text = README.read_text("utf-8")
    section = text.split("\n## Commands\n")[1].split("\n\n")[0]
    table = {name.split()[0] for name in re.findall(r"^\| `([\w -]+)` \|", section, re.M)}
    assert table - {"fairseq-mm"} == set(SUBCOMMANDS)  # the table's head
    for task, classes in ARCHITECTURES.items():
        ours = {name for name, cls in ARCH_MODEL_REGISTRY.items() if cls in classes}
        assert ours <= set(re.findall(r"`(\w+)`", text))
        example = (EXAMPLES / task / "README.md").read_text("utf-8")
        systems = "m_rnn|conv_story|gcnn_lm|glac|transtory|vg_bart|vg_t5|t5|pointer_generator"
        systems += "|hierarchical_attention|mffg|vse|lbl|mlbl|sc_nlm"
        named = set(re.findall(rf"\b(?:{systems})\w*", example))
        assert ours <= named


def test_every_python_example_compiles():
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
            compile(block, str(page), "exec")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_recipe_without_arguments_says_what_it_takes(recipe):
    done = subprocess.run(["bash", str(recipe)], capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(rf"# .+: {recipe.name} DATA(/\w+)? SAVE_DIR .*\n", done.stderr)


@pytest.fixture
def run_recipe(tmp_path):
    """Runs a recipe in bash with the commands that stand beside this Python."""
    for program in ("fairseq-mm", "fairseq-train", "fairseq-generate"):
        if shutil.which(program, path=str(BIN)) is None:
            pytest.skip(f"{program} is not installed beside {sys.executable}")
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "MARGINAL_IMAGES": "5",
    }

    def call(name, *arguments):
        done = subprocess.run(
            ["bash", str(CAPTIONING / f"{name}.sh"), *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return call


def test_recipes_train_generate_score_and_rank(run_recipe, tmp_path):
    data = make_captions_folder(tmp_path / "data with a space")
    small = ["m_rnn_tiny", "--max-update", "2", "--batch-size", "8", "--num-workers", "0"]
    run_recipe("train_m_rnn", data.name, "saved", *small)
    saved = tmp_path / "saved"
    assert (saved / "checkpoint_best.pt").exists()

    printed = run_recipe(
        "generate_and_score", data.name, "saved", "valid", "--metrics", "bleu,cider,perplexity"
    )
    for decoding in ("greedy", "beam"):
        lines = (saved / f"{decoding}-valid.txt").read_text().splitlines()
        hypotheses = [line.split("\t")[0] for line in lines if line.startswith("H-")]
        assert sorted(hypotheses) == sorted(f"H-{3 * i}" for i in range(7))
        figures = json.loads((saved / f"{decoding}-valid.json").read_text())
        assert {"bleu4", "cider", "perplexity"} <= {score["metric"] for score in figures["scores"]}
        assert (saved / f"{decoding}-valid.txt.card.json").exists()
    assert printed.index("greedy:") < printed.index("beam:")
    assert "images for a sentence" in printed
    scored = (saved / "reference-valid.txt").read_text().splitlines()
    assert sum(line.startswith("H-") for line in scored) == 21  # captions, not images
    assert (saved / "checkpoint_best.rank-valid" / "ranks.json").exists()


def test_recipes_embed_and_caption_by_structures(run_recipe, tmp_path):
    data = make_captions_folder(tmp_path / "data")
    for split in ("train", "valid"):
        write_text_and_tags(data, split)
    small = ["--max-update", "2", "--batch-size", "8"]
    run_recipe("train_vse", data.name, "vse", "vse_tiny", *small)
    run_recipe("train_sc_nlm", data.name, "sc nlm", "vse", "sc_nlm_tiny", *small)
    arguments = ["--features", data / "features.h5", "--model", tmp_path / "sc nlm"]
    arguments += ["--embedding", tmp_path / "vse", "--data", data, "--candidates", 9]
    arguments += ["--shortest", 1, "--output", tmp_path / "captions.txt"]
    assert main(["caption", *map(str, arguments)]) == 0
    captions = (tmp_path / "captions.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in captions] == FeatureStore(data / "features.h5").ids
    assert main(["score", str(tmp_path / "captions.txt"), "--data", str(data)]) == 0
