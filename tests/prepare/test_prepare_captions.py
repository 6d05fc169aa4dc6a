"""``fairseq-mm prepare captions``: options, messages, exit status."""

import json

import pytest
from written_folder import binarised, tokens


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    with open(path, "w") as file:
        for number in range(7):
            captions = [f"A cat no{number}.", "The cat's ball"]
            file.write(json.dumps({"image": f"{number}.jpg", "captions": captions}) + "\n")
    return path


@pytest.fixture
def prepare(run_command, data, tmp_path):
    """Runs the command on ``data``; returns exit status, stdout, stderr."""

    def call(*options, files=(data,)):
        return run_command("prepare", "captions", *files, "--output", tmp_path / "out", *options)

    return call


def test_the_same_call_gives_the_same_folder(prepare, tmp_path):
    folders = []
    for options in ((), ("--overwrite",)):
        assert prepare("--valid-size", 2, *options)[0] == 0
        files = {p.name: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
        report = json.loads(files.pop("prepare.json"))
        del report["stamps"]  # of the files' times
        folders.append((files, report))
    assert folders[0] == folders[1]


@pytest.mark.parametrize(
    ("tokenizer", "options", "text"),
    [
        ("words", [], "a cat no0\nthe cat 's ball\n"),
        ("words", ["--keep-case", "--keep-punctuation"], "A cat no0 .\nThe cat 's ball\n"),
        ("whitespace", [], "a cat no0.\nthe cat's ball\n"),
        ("m_rnn", [], "a cat no0\nthe cat ' s ball\n"),
        ("ptb", [], "a cat no0\nthe cat 's ball\n"),
    ],
)
def test_the_tokenizer_can_be_chosen(prepare, tmp_path, tokenizer, options, text):
    assert prepare("--tokenizer", tokenizer, "--threshold", 1, *options)[0] == 0
    assert binarised(tmp_path / "out", "train")[:2] == text.splitlines()
    assert tokens(tmp_path / "out", "train")[:2] == text.splitlines()
