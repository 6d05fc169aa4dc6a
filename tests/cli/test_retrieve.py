"""`fairseq-mm retrieve prompts`: whose story each prompt gets, how it is written, errors."""

import json

import pytest

from fairseq_mm.cli.main import main

TRAIN = [
    ("[ WP ] A dragon guards the last library .", "Smoke rose . <newline> The books were warm ."),
    ("[ WP ] Your cat can talk .", "`` Food , '' said the cat ."),
    ("[ CW ] A dragon and a knight share a flat .", "The rent was due again ."),
    ("[ WP ] Your cat can talk .", "It never said a word to me ."),
]


@pytest.fixture
def data(tmp_path):
    text = tmp_path / "wp" / "text"
    text.mkdir(parents=True)
    (text / "train.wp_source").write_text("".join(f"{prompt}\n" for prompt, _ in TRAIN))
    (text / "train.wp_target").write_text("".join(f"{story}\n" for _, story in TRAIN))
    (text / "valid.wp_source").write_text(
        "[ WP ] Your cat sings .\n[ WP ] qqq\n[ WP ] The Dragon\n"
    )
    return tmp_path / "wp"


@pytest.fixture
def retrieve(data, capsys):
    def run(*arguments):
        status = main(["retrieve", "prompts", str(data), *map(str, arguments)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def jsonl(text):
    return [json.loads(line) for line in text.splitlines()]


def test_each_prompt_of_the_split_gets_the_story_of_its_nearest_prompt(retrieve):
    status, out, err = retrieve("--words", 3)
    assert status == 0
    first, last = jsonl(out)
    assert (first["id"], first["hypothesis"], first["training_line"]) == (0, "`` Food ,", 2)
    assert first["training_prompt"] == TRAIN[1][0]
    assert (last["id"], last["hypothesis"], last["k"]) == (2, "Smoke rose .", 1)
    assert "1 of 3 prompts have fewer than 1 neighbours and no story at that rank: 1 (no " in err


def test_several_ranks_are_several_files(retrieve, tmp_path):
    assert retrieve("--k", "1,2", "--output", tmp_path / "knn-{k}.jsonl")[0] == 0
    lines = [jsonl((tmp_path / f"knn-{k}.jsonl").read_text()) for k in (1, 2)]
    assert [entry["training_line"] for entry in lines[0]] == [2, 1]
    assert [entry["training_line"] for entry in lines[1]] == [4, 3]
    status, _, err = retrieve("--k", "1,2", "--output", tmp_path / "knn.jsonl")
    assert status == 2
    assert "knn.jsonl: must have {k} in its name, because --k has several ranks" in err


def test_text_has_a_line_for_each_prompt(retrieve, tmp_path):
    assert retrieve("--output", tmp_path / "knn.txt", "--words", 999)[0] == 0
    assert (tmp_path / "knn.txt").read_text() == f"{TRAIN[1][1]}\n\n{TRAIN[0][1]}\n"


def test_training_prompts_do_not_find_their_own_text(retrieve):
    _, out, _ = retrieve("--split", "train")
    assert {entry["id"]: entry["training_line"] - 1 for entry in jsonl(out)} == {
        0: 2,
        1: 0,  # the full stop alone
        2: 0,
        3: 0,
    }


def test_a_prompt_of_the_command_line_is_tokenised_and_its_story_has_line_breaks(retrieve):
    status, out, _ = retrieve("--prompt", "The last dragon, please.")
    assert status == 0
    assert out.startswith(f"{TRAIN[0][0]}\n(line 1 of train, rank 1, cosine 0.")
    assert "\n\nSmoke rose.\nThe books were warm.\n" in out


def test_a_prompt_without_neighbours_is_named(retrieve):
    status, out, err = retrieve("--prompt", "qqq")
    assert (status, out) == (0, "")
    assert "1 of 1 prompts have fewer than 1 neighbours and no story at that rank: 0 (no " in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "dragon \udcff"], "--prompt: must be UTF-8 text, but is not (surrogates"),
        (["--split", "test"], ": has no split 'test', but train"),
        (["--output", "absent/x.jsonl"], "there is no folder absent."),
    ],
)
def test_mistakes_are_one_line(retrieve, arguments, message):
    status, out, err = retrieve(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
