"""docs/results/coverage.md: each command parses, and each section counts its rows."""

import re

import pytest
from pages import DOCS
from parsers import inline_commands, parse_command

PAGE = (DOCS / "results" / "coverage.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
COMMANDS = list(dict.fromkeys(inline_commands(PAGE)))
NOT_HERE, PARTLY = "not here: ", "partly: "


@pytest.fixture
def parse(monkeypatch, run_recipe, tmp_path):
    """Parse a command of the page."""
    text = tmp_path / "DATA" / "text"  # a recipe of stories reads the prompts of a split
    text.mkdir(parents=True)
    for split in ("train", "valid", "test"):
        (text / f"{split}.wp_source").write_text("[ WP ] a prompt\n")
    # a recipe of captions copies these, and the ids that `embed` writes, which is not run
    files = ["DATA/dict.txt"]
    for split in ("train", "valid"):
        files += [f"DATA/{split}.{ending}" for ending in ("bin", "idx", "tags")]
        files.append(f"SAVE_DIR/data/{split}.{split}.visual_ids")
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    return lambda command: parse_command(command, monkeypatch, run_recipe)


@pytest.mark.parametrize(
    "command",
    [
        *COMMANDS,
        "fairseq-eval-lm DATA --user-dir fairseq_mm --task language_modeling --path FILE",
        "fairseq-interactive DATA --user-dir fairseq_mm --task multimodal_captioning --path FILE",
        "examples/multimodal_captioning/train_sc_nlm.sh DATA SAVE_DIR EMBEDDING mlbl_f",
        "python scripts/tag_pos.py DATA --tagger spacy > FILE",
    ],
)
def test_command_of_the_page_parses(command, parse):
    parse(command)


@pytest.mark.parametrize(
    "command",
    [
        "fairseq-mm score OUTPUT --data DATA --preset how3",
        "fairseq-mm score OUTPUT --data DATA --presets how2",
        "fairseq-mm score OUTPUT --data DATA --prese how2",  # an abbreviation
        "fairseq-mm prepare how2 TEXT --outputs DATA",
        "fairseq-mm no_such_subcommand DATA",
        "fairseq-mm score OUTPUT --data DATA | fairseq-mm score --sistem FILE",
        "fairseq-train DATA --user-dir fairseq_mm --task video_summarization --arch vg_bart_base "
        "--fusion-layers 5,6",
        "fairseq-train DATA --user-dir fairseq_mm --task video_summarization --arch vg_bard",
        "fairseq-generate DATA --user-dir fairseq_mm --task video_summarization --paths FILE",
        "fairseq-interactive DATA --user-dir fairseq_mm --task multimodal_captioning --beams 3",
        "fairseq-eval-lm DATA --user-dir fairseq_mm --task language_modeling --paths FILE",
        "fairseq-preprocess --only-sources",
        "examples/video_summarization/1_train.sh DATA SAVE_DIR mffg_rnn --max-epochs 3",
        "examples/video_summarization/1_train.sh DATA SAVE_DIR mfgg_rnn",
        "examples/video_summarization/1_train.sh DATA SAVE_DIR",
        "GPUS=two examples/video_summarization/1_train.sh DATA SAVE_DIR mffg_rnn",
        "examples/video_summarization/1_trains.sh DATA SAVE_DIR mffg_rnn",
        "python scripts/tag_pos.py DATA --taggers spacy",
        "python scripts/no_such_script.py DATA",
    ],
)
def test_a_misspelt_command_is_found(command, parse):
    assert list(inline_commands(f"| Table 1 | scores | `{command.replace('|', chr(92) + '|')}` |"))
    with pytest.raises((SystemExit, AssertionError)):
        parse(command)


def rows_of(section):
    """The cells of each row of a section's table."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert rows[:2] == [["paper", "item", "here"], ["---", "---", "---"]]
    return rows[2:]


def count_items(rows):
    """The line that counts the rows of a table, which have a command or a reason each."""
    assert all(len(row) == 3 and all(row) for row in rows)
    missing = [here for _, _, here in rows if here.startswith(NOT_HERE)]
    partial = [here for _, _, here in rows if here.startswith(PARTLY)]
    whole = [here for _, _, here in rows if here not in (*missing, *partial)]
    assert [here for here in (*partial, *whole) if not list(inline_commands(here))] == []
    return f"{len(rows)} items: {len(whole)} here, {len(partial)} partly, {len(missing)} not here."


@pytest.mark.parametrize("title", SECTIONS)
def test_section_counts_its_items(title):
    assert SECTIONS[title].strip().splitlines()[-1] == count_items(rows_of(SECTIONS[title]))


def test_introduction_counts_all_items():
    assert len(SECTIONS) == 5
    all_rows = [row for section in SECTIONS.values() for row in rows_of(section)]
    assert count_items(all_rows) in PAGE[: PAGE.index("\n## ")].splitlines()
