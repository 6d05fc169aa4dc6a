"""``fairseq-mm prepare videos``: options, messages, exit status."""

import json

import pytest
import toy_subwords


@pytest.fixture
def data(tmp_path):
    (tmp_path / "sub.vtt").write_text("WEBVTT\n\n00:01.000 --> 00:02.000\n<i>It's</i> Talk5\n")
    path = tmp_path / "data.jsonl"
    with open(path, "w") as file:
        for number in range(6):
            text = "sub.vtt" if number == 5 else f"It's talk{number}."
            entry = {"video": f"v/{number}.mp4", "transcript": text, "summary": "The  Talk!"}
            file.write(json.dumps(entry) + "\n")
    return path


@pytest.fixture
def prepare(run_command, data, tmp_path):
    """Runs the command on ``data``; returns exit status, stdout, stderr."""

    def call(*options):
        options = ("--output", tmp_path / "out", *options)
        return run_command("prepare", "videos", data, *options)

    return call


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_a_pretrained_folder_brings_dictionary_and_subwords(prepare, tmp_path):
    _, merges = toy_subwords.write_gpt2(tmp_path / "bart")
    dictionary = tmp_path / "bart" / "dict.txt"
    dictionary.write_text("".join(f"{number} 1\n" for number in range(262)))
    status, out, _ = prepare("--pretrained", tmp_path / "bart")
    assert status == 0
    folder = tmp_path / "out"
    assert json.loads((folder / "subwords.json").read_text()) == {"kind": "gpt2"}
    assert (folder / "vocab.bpe").read_text() == merges.read_text()
    assert lines(folder / "dict.desc.txt") == lines(dictionary)
    assert "(0.00% unknown)" in out.splitlines()[0]
