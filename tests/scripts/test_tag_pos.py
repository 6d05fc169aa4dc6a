"""``scripts/tag_pos.py``: tags of a prepared folder."""

import functools

import pytest


@pytest.fixture
def tag(run_script):
    return functools.partial(run_script, "tag_pos.py")


def test_each_split_gets_as_many_tags_as_tokens(tag, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text("a dog is jumping\ntwo men\n")
    (tmp_path / "text" / "valid.txt").write_text("a dog jumps\n")
    status, out, err = tag(tmp_path, "--tagger", "rules")
    assert (status, err) == (0, "")
    assert out == (
        f"{tmp_path}/train.tags: 2 lines, 4 kinds of tags by rules (NOUN 33%, VERB 33%, DET 17%, "
        "NUM 17%)\n"
        f"{tmp_path}/valid.tags: 1 lines, 3 kinds of tags by rules (DET 33%, NOUN 33%, VERB 33%)\n"
    )
    assert (tmp_path / "train.tags").read_text() == "DET NOUN VERB VERB\nNUM NOUN\n"
    # jumps is a verb since train has jumping
    assert (tmp_path / "valid.tags").read_text() == "DET NOUN VERB\n"


def test_only_a_line_feed_ends_a_line(tag, tmp_path):
    (tmp_path / "text").mkdir()
    text = "a dog \u2028 jumps\ntwo \x85 \x0b men\n\na cat"
    (tmp_path / "text" / "train.txt").write_text(text, encoding="utf-8")
    status, _, err = tag(tmp_path, "--tagger", "rules")
    assert (status, err) == (0, "")
    lines = (tmp_path / "train.tags").read_text(encoding="utf-8").split("\n")
    # white space that ends no line parts words, as it does where the text is binarised
    assert [len(line.split()) for line in lines] == [3, 2, 0, 2, 0]


def test_mistakes_are_one_line_each(tag, tmp_path):
    status, _, err = tag(tmp_path, "--tagger", "rules")
    assert status == 2
    assert err == (
        f"tag_pos.py: {tmp_path}/text: no .txt file; is {tmp_path} a folder made by "
        "`prepare captions`?\n"
    )
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_bytes(b"a d\xf6g\n")
    status, _, err = tag(tmp_path, "--tagger", "rules")
    assert status == 2
    assert "train.txt:1: must be UTF-8 text" in err
