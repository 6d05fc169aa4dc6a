"""A mistake in the options of ``fairseq-mm prepare`` is one line, and nothing is written."""

import json

import pytest

from fairseq_mm.cli.main import main

LINES = {
    "captions": [{"image": f"{n}.jpg", "captions": ["A cat", "The ball"]} for n in range(7)],
    "prompts": [{"prompt": f"[WP] A cat{n}.", "story": "He said."} for n in range(6)],
    "videos": [{"video": f"{n}.mp4", "transcript": "It's", "summary": "A"} for n in range(6)],
    "stories": [
        {"images": [f"{n}_{k}.jpg" for k in range(5)], "sentences": ["We ran."] * 5}
        for n in range(6)
    ],
}
LOST = "--missing needs --features, to say what is missing"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("captions --dictionary d.txt --threshold 2", "d.txt fixes the words; leave --threshold"),
        ("captions --threshold 0", "argument --threshold: must be a number of 1 or more, but"),
        ("captions --threshold 99", "no word occurs 99 times or more in the training captions"),
        ("captions --tokenizer m_rnn --keep-case", "--tokenizer m_rnn has its own rules"),
        ("captions --tokenizer ptb --keep-punctuation", "--tokenizer ptb has its own rules"),
        ("captions --valid-size 7", "--valid-size must be below 7, the number of training images"),
        ("captions --without-images --features f.h5", "--features: is of images, and"),
        ("captions --missing drop", LOST),
        ("prompts --source-dictionary d.txt --source-threshold 2", "d.txt fixes the words; leave"),
        ("prompts --story-words -1", "argument --story-words: must be a number of 0 or more"),
        ("prompts", "no word occurs 10 times or more in the training prompts; give a smaller"),
        ("videos --pretrained p --dictionary x", "--pretrained brings its dictionary; leave"),
        ("videos --pretrained p", "p/dict.txt: cannot be read as a dictionary (No such file"),
        ("videos --dictionary empty", "empty: cannot be read as a dictionary (it has no word"),
        ("videos --max-words -1", "argument --max-words: must be a number of 1 or more, but is"),
        ("videos --indexed-oov 10000000", "argument --indexed-oov: must be a number between 0 an"),
        ("videos --tokenizer none --threshold 9", "no word occurs 9 times or more in the train"),
        ("videos --missing drop", LOST),
        ("stories --threshold 99", "no word or not even <sent> occurs 99 times or more in the tr"),
        ("stories --missing drop", LOST),
        ("stories --features none.h5", "none.h5: is no feature store"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(capsys, tmp_path, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").mkdir()
    (tmp_path / "empty").touch()
    name, *options = command.split()
    lines = (json.dumps(line) + "\n" for line in LINES[name])
    (tmp_path / "data.jsonl").write_text("".join(lines))
    try:
        status = main(["prepare", name, "data.jsonl", "--output", "out", *options])
    except SystemExit as error:  # of argparse
        status = error.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
