"""prompt_following.py and its recipe, from the command to the figures."""

import json
import shlex

import prompt_following
import pytest
from forked_shell import ForkedShell
from known_facts.words import KINDS
from toy_data import PACKAGE

from fairseq_mm.cli.script import run_script

EXAMPLE = PACKAGE.parent / "examples/hierarchical_story"
WIDTHS = "--decoder-embed-dim 8 --decoder-out-embed-dim 6"
LAYERS = "--encoder-embed-dim 8 --encoder-layers [(8,3)] --decoder-layers [(12,4)]"
LSTM = "--encoder-embed-dim 8 --encoder-hidden-size 8 --decoder-hidden-size 8"


@pytest.fixture
def program(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["prompt_following.py", *map(str, arguments)])
        status = run_script(
            prompt_following.__doc__, [prompt_following.add_arguments], prompt_following.run
        )
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def write_small(program, folder, *options):
    sizes = ("--train", 12, "--valid", 11, "--test", 10)
    assert program("write", folder, *sizes, *options)[0] == 0
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_equal_options_write_equal_files(program, tmp_path):
    once = write_small(program, tmp_path / "new" / "one")
    (tmp_path / "two").mkdir()
    again = write_small(program, tmp_path / "two")
    assert once == again
    assert once != write_small(program, tmp_path / "three", "--seed", 2)
    sides = ("wp_source", "wp_target", "facts.jsonl")
    assert set(once) == {
        "dependence.json",
        *(f"{split}.{side}" for split in ("train", "valid", "test") for side in sides),
    }
    facts = [json.loads(line) for line in once["valid.facts.jsonl"].decode().splitlines()]
    prompts = once["valid.wp_source"].decode().splitlines()
    assert len(facts) == len(prompts) == 11
    for entry, prompt in zip(facts, prompts):
        assert set(entry["facts"].values()) <= set(prompt.split())
    report = json.loads(once["dependence.json"])
    assert report["ranking"]["valid"]["oracle"] == 1
    assert report["ranking"]["chance"] == 0.1
    assert report["pairs"] == {"valid": 11, "test": 10, "train": 12}


def test_figures_of_stories(program, tmp_path):
    write_small(program, tmp_path / "pairs")
    prompts = (tmp_path / "pairs/valid.wp_source").read_text().splitlines()
    stories = (tmp_path / "pairs/valid.wp_target").read_text().splitlines()

    def score(stories):
        with open(tmp_path / "stories.jsonl", "w") as file:
            for number, (prompt, story) in enumerate(zip(prompts, stories)):
                entry = {"id": number, "prompt": prompt, "hypothesis": story.replace(" .", ".")}
                entry["tokens"] = story  # as `tell` writes it
                print(json.dumps(entry), file=file)
        status, out, _ = program("score", tmp_path / "stories.jsonl", "--json", tmp_path / "s.json")
        assert status == 0
        assert out.startswith("11 stories; ")
        return json.loads((tmp_path / "s.json").read_text())["kinds"]

    own = score(stories)
    assert set(own) == {*KINDS, "all"}
    for figures in own.values():
        assert figures["taken_up"]["value"] == figures["right"]["value"] == 1
    assert own["hero"]["sentences"] == 2
    assert own["all"]["sentences"] == 10
    assert 0 <= own["tone"]["chance"] < 0.4
    half = score([story[: story.find(" .", len(story) // 2)] for story in stories])
    assert 0.5 < half["all"]["taken_up"]["value"] <= 1
    assert half["all"]["right"]["value"] == 1
    others = score([*stories[1:], stories[0]])
    assert others["all"]["right"]["value"] < 0.3
    # one story for all prompts has its chance and no more
    same = score([stories[0]] * 11)["all"]
    assert 1 / 11 <= same["right"]["value"] == pytest.approx(same["chance"])
    # no sentence of a fact: a share of nothing is 0
    assert score(["it rained ."] * 11)["all"]["right"]["value"] == 0
    # no sentence, no share of right ones
    out = program("score", tmp_path / "stories.jsonl")[1]
    assert out.splitlines()[-1].split()[-3:] == ["-", "-", "0.00"]


@pytest.mark.parametrize(
    ("arch", "sizes"),
    [
        ("conv_story_gated", f"{WIDTHS} {LAYERS}"),
        pytest.param("gcnn_lm", f"{WIDTHS} --decoder-layers [(12,4)]", marks=pytest.mark.slow),
        pytest.param("lstm", f"{WIDTHS} {LSTM}", marks=pytest.mark.slow),
        pytest.param("conv_story_fusion", f"{WIDTHS} {LAYERS}", marks=pytest.mark.slow),
    ],
    ids=["conv_story_gated", "gcnn_lm", "lstm", "conv_story_fusion"],
)
def test_recipe_trains_ranks_and_counts_facts(program, tmp_path, arch, sizes):
    def adapt(name, words):
        if "--user-dir" in words:  # the folder from which this process has imported the package
            words[words.index("--user-dir") + 1] = str(PACKAGE)
        return words

    write_small(program, tmp_path / "an out" / "pairs")
    shell = ForkedShell(tmp_path, adapt, {"STORIES": "2", "DRAWS": "1"})
    recipe = f"'{EXAMPLE / '6_follow_prompts.sh'}' 'an out'"
    tiny = shlex.join([*sizes.split(), "--max-update", "2", "--num-workers", "0"])
    try:
        if arch == "conv_story_fusion":
            done = shell.run(f"{recipe} conv_story_gated {tiny}")
            assert done.status == 0, done.output[-3000:]
        done = shell.run(f"{recipe} {arch} {tiny}")
    finally:
        shell.close()
    assert done.status == 0, done.output[-3000:]
    assert "perplexity, all tokens" in done.output
    if arch != "gcnn_lm":
        assert "11 of 11 stories, 11 different prompts, 10 candidates, 1 draws" in done.output
        scores = tmp_path / "an out" / f"scores-{arch}"
        for stories in ("generated", "nearest"):
            figures = json.loads((scores / f"{stories}.facts.json").read_text())
            assert figures["stories"] == (2 if stories == "generated" else 11)
        assert figures["kinds"]["all"]["sentences"] == 10  # of training stories
