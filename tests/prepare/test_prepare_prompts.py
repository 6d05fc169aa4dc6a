"""``fairseq-mm prepare prompts``: options, messages, exit status."""

import json

import pytest
from written_folder import binarised, tokens


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    with open(path, "w") as file:
        for number in range(6):
            story = f'He said "no{number}".\n\nIt can\'t be.'
            file.write(json.dumps({"prompt": f"[WP] A cat{number}.", "story": story}) + "\n")
    return path


@pytest.fixture
def prepare(run_command, data, tmp_path):
    """Runs the command on ``data``; returns exit status, stdout, stderr."""

    def call(*options):
        options = ("--output", tmp_path / "out", *options)
        return run_command("prepare", "prompts", data, *options)

    return call


def test_own_data_becomes_a_data_folder(prepare, tmp_path):
    status, out, err = prepare(
        "--valid-size", 2, "--source-threshold", 2, "--target-threshold", 3, "--story-words", 9
    )
    assert status == 0
    assert err == ""
    lines = out.splitlines()
    # [ WP ] A catN . and: He said `` noN '' . <newline> <newline> It | ca n't be .
    assert lines[0] == (
        "train: 4 pairs, 4 prompts, 24 prompt words (16.67% unknown), 36 story words "
        "(11.11% unknown), 4 stories cut, 16 words cut; on average 6.0 words a prompt, "
        "13.0 a story before the cut (52 words)"
    )
    assert lines[1].startswith("valid: 2 pairs, 2 prompts, 12 prompt words (16.67% unknown)")
    assert lines[2] == "dict.wp_source.txt: 5 words, 9 types with fairseq's symbols"
    assert lines[3] == "dict.wp_target.txt: 7 words, 11 types with fairseq's symbols"
    assert lines[4:] == [f"wrote {tmp_path / 'out'}"]
    text = tokens(tmp_path / "out", "train")
    assert text[0].split()[:3] == ["He", "said", "``"]
    assert text[0].split()[4:] == ["''", ".", "<newline>", "<newline>", "It"]
    report = json.loads((tmp_path / "out" / "prepare.json").read_text())
    assert (report["kind"], report["options"]["tokenizer"]) == ("prompts", "story")


def test_text_that_is_split_already_is_left_alone(prepare, data, tmp_path):
    data.write_text('{"prompt": "[WP] x.", "story": "a. <newline> </s>\\nb"}\n')
    options = ["--tokenizer", "whitespace", "--source-threshold", 1, "--target-threshold", 1]
    status, _, err = prepare(*options)
    assert status == 2
    assert "data.jsonl:1: the story holds fairseq's control symbol </s>, which would be" in err
    data.write_text(data.read_text().replace("</s>", "< /s >"))
    assert prepare(*options)[0] == 0
    assert binarised(tmp_path / "out", "train", "wp_source") == ["[WP] x."]
    assert binarised(tmp_path / "out", "train", "wp_target") == ["a. <newline> < /s > b"]
