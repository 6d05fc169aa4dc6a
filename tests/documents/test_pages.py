"""What the documentation names is there: commands, options, recipes, architectures and files."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
from fairseq.models import ARCH_MODEL_REGISTRY
from pages import DOCS, PAGES, ROOT, RUN, RUN_WHOLE, SHOWN, blocks_of, commands_of, name_of
from parsers import FAIRSEQ_PARSERS, parse_program
from toy_data import PACKAGE
from toy_hydra import composed_config

from fairseq_mm import __version__
from fairseq_mm.generation.config import GenerationConfig

EXAMPLES = ROOT / "examples"
REPOSITORY = "https://github.com/fairseq-mm/fairseq_mm"
SOURCED = {"sizes.sh", "steps.sh", "systems.sh"}
RECIPES = {path.name: path for path in EXAMPLES.glob("*/*.sh") if path.name not in SOURCED}
PARSED = {*FAIRSEQ_PARSERS, "fairseq-mm", "fairseq-hydra-train", "python"}


def test_every_block_is_run_or_shown():
    for page in PAGES:
        blocks = blocks_of(page)
        for block in blocks:
            assert block.language in RUN + SHOWN, block.name
            assert block.needs is None or block.language in RUN, block.name
        text = page.read_text()
        assert text.count("\n```") == 2 * len(blocks), page
        assert text.count("needs:") == sum(block.needs is not None for block in blocks), page


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=f"{name_of(page)}-{number}-{' '.join(words[:2])}")
        for page in PAGES
        if page not in RUN_WHOLE
        for number, words in enumerate(commands_of(page, run=False))
        if words[0] in PARSED
    ],
)
def test_command_of_a_block_that_does_not_run_parses(words, monkeypatch):
    if words[0] != "fairseq-hydra-train":
        parse_program(words, monkeypatch)
        return
    assert (words[1], words[3]) == ("--config-dir", "--config-name")
    overrides = [word.replace("$PWD", str(ROOT)) for word in words[5:]]
    if "$(fairseq-mm" in overrides:  # options that a checkpoint gives come last
        overrides = overrides[: overrides.index("$(fairseq-mm")]
    cfg = composed_config(monkeypatch, ROOT / words[2], words[4], overrides)
    assert Path(cfg.common.user_dir) == PACKAGE


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
    rows = re.findall(r"^\| .* \| `(\w+\.sh .*)` \|$", page.read_text(), re.M)
    for words in [*commands_of(page), *map(shlex.split, rows)]:
        names = [i for i, word in enumerate(words) if word.endswith(".sh")]
        if names:
            path = words[names[0]]  # on a page of a task also without its folder
            recipe = ROOT / path if (ROOT / path).exists() else RECIPES[path]
            usage = recipe.read_text().splitlines()[1].split(f"{recipe.name} ")[1]
            assert len(words) - names[0] - 1 >= len(usage.split(" [")[0].split())


def test_every_architecture_is_documented():
    overview = (DOCS / "index.md").read_text("utf-8")
    ours = {
        name
        for name, cls in ARCH_MODEL_REGISTRY.items()
        if cls.__module__.startswith("fairseq_mm.")
    }
    assert len(ours) > 50
    assert sorted(ours - set(re.findall(r"`(\w+)`", overview))) == []


def test_every_option_of_generation_is_documented():
    page = (DOCS / "generation.md").read_text("utf-8")
    fields = {field.name for field in dataclasses.fields(GenerationConfig)}
    fields -= {"constraints", "max_len_a"}
    assert [name for name in sorted(fields) if f"`{name}`" not in page] == []


def test_the_version_and_its_date_agree():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    version, date = re.search(r"^## (\S+) - (\S+)$", changelog, re.M).groups()
    assert version == __version__
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {version}\ndate-released: {date}\n" in citation
