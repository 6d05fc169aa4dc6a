"""``scripts/tag_pos.py``: tags of a prepared folder."""

import functools
import json

import pytest

from fairseq_mm.cli.main import main
from fairseq_mm.data.folder_lock import locked_folder
from fairseq_mm.data.records import open_split

TEXTS = {"train": ["A dog is jumping", "two \u2028 men"], "valid": ["a dog jumps"]}


@pytest.fixture
def tag(run_script):
    return functools.partial(run_script, "tag_pos.py")


@pytest.fixture
def folder(tmp_path, capsys):
    entries = [{"captions": texts, "split": split} for split, texts in TEXTS.items()]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    arguments = ["--without-images", "--threshold", "1", "--output", str(tmp_path / "made")]
    assert main(["prepare", "captions", str(tmp_path / "a.jsonl"), *arguments]) == 0
    capsys.readouterr()
    return tmp_path / "made"


def test_each_caption_gets_as_many_tags_as_tokens(tag, folder):
    before = (folder / "train.bin").stat().st_mtime_ns
    status, out, err = tag(folder, "--tagger", "rules")
    assert (status, err) == (0, "")
    assert out == (
        f"{folder}/train.jsonl: 2 lines, 4 kinds of tags by rules (NOUN 33%, VERB 33%, DET 17%, "
        "NUM 17%)\n"
        f"{folder}/valid.jsonl: 1 lines, 3 kinds of tags by rules (DET 33%, NOUN 33%, VERB 33%)\n"
    )
    assert open_split(folder, "train").field("tags") == ["DET NOUN VERB VERB", "NUM NOUN"]
    assert open_split(folder, "train").texts == TEXTS["train"]
    # jumps is a verb since train has jumping
    assert open_split(folder, "valid").field("tags") == ["DET NOUN VERB"]
    assert (folder / "train.bin").stat().st_mtime_ns == before


def test_tags_are_not_written_while_their_text_is_prepared(tag, folder):
    before = (folder / "train.jsonl").read_bytes()
    with locked_folder(str(folder)):
        status, _, err = tag(folder, "--tagger", "rules")
    assert (status, "another process is writing" in err) == (2, True)
    assert (folder / "train.jsonl").read_bytes() == before
