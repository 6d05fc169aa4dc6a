"""docs/results/coverage.md: each item has a command that parses, or a reason."""

import re
from string import Template

import pytest
from pages import DOCS
from parsers import inline_commands, parse_command

PAGE = (DOCS / "results" / "coverage.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))


def commands_of_section(text):
    """The commands of a section's table, with the variables that its block sets."""
    variables = dict(re.findall(r'^(\w+)="(.+)"$', text, re.M))
    return [Template(x).substitute(variables) for x in inline_commands(text)]


COMMANDS = list(dict.fromkeys(x for text in SECTIONS.values() for x in commands_of_section(text)))


@pytest.fixture
def parse(monkeypatch, run_recipe, tmp_path):
    """Parse a command of the page."""
    # recipes copy these, and the ids that `embed` writes, which is not run
    files = ["DATA/dict.txt"]
    for split in ("train", "valid", "test"):
        files += [f"DATA/{split}.{ending}" for ending in ("bin", "idx", "jsonl")]
        files.append(f"SAVE_DIR/data/{split}.{split}.jsonl")

    def call(command):
        for name in files:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text('{"prompt": "[ WP ] a prompt", "tags": ["D N"]}\n')
        parse_command(command, monkeypatch, run_recipe)

    return call


def test_commands_of_the_page_parse(parse):
    assert len(COMMANDS) > 100
    for command in COMMANDS:
        try:
            parse(command)
        except SystemExit as error:
            raise AssertionError(command) from error


@pytest.mark.parametrize(
    "command",
    [
        "fairseq-mm score OUTPUT --data DATA --prese how2",  # an abbreviation
        "fairseq-mm no_such_subcommand DATA",
        "fairseq-train DATA --user-dir fairseq_mm --task video_summarization --arch vg_bard",
        "fairseq-generate DATA --user-dir fairseq_mm --task video_summarization --paths FILE",
        "env GPUS=two examples/video_summarization/1_train.sh DATA SAVE_DIR mffg_rnn",
        "examples/video_summarization/1_train.sh DATA SAVE_DIR mfgg_rnn",
        "examples/video_summarization/1_trains.sh DATA SAVE_DIR mffg_rnn",
        "python scripts/tag_pos.py DATA --taggers spacy",
        "python scripts/no_such_script.py DATA",
    ],
)
def test_a_misspelt_command_is_found(command, parse):
    assert list(inline_commands(f"| Table 1 | scores | `{command}` |")) == [command]
    with pytest.raises((SystemExit, AssertionError)):
        parse(command)


def test_every_item_has_a_command_or_a_reason():
    assert len(SECTIONS) == 5
    for text in SECTIONS.values():
        lines = [line for line in text.splitlines() if line.startswith("|")]
        assert lines[:2] == ["| item of the paper | command, or reason |", "|---|---|"]
        for line in lines[2:]:
            *_, here = [cell.strip() for cell in line.strip("|").split("|")]
            assert here.startswith("not here: ") or list(inline_commands(here)), line
