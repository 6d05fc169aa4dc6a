"""Files beside the binarised text are read line by line, and what is wrong is named."""

import re

import pytest

from fairseq_mm.data.split_files import (
    first_lines,
    read_missing_images,
    read_oov_words,
    read_references,
    read_visual_ids,
)
from fairseq_mm.errors import UserError


def test_lines_hold_one_key_or_several(tmp_path):
    path = tmp_path / "train.visual_ids"
    path.write_text("a.jpg\nb.jpg\tc.jpg\na.jpg\n")
    assert read_visual_ids(path) == ["a.jpg", "b.jpg\tc.jpg", "a.jpg"]


def test_first_line_of_each_item_is_marked():
    assert first_lines(["a", "b\tc", "a", "b", "b\tc"]).tolist() == [True, True, False, True, False]


@pytest.mark.parametrize("line", ["", "a\t", "\tb"])
def test_empty_key_is_named_by_file_and_line(tmp_path, line):
    path = tmp_path / "train.visual_ids"
    path.write_text(f"x\n{line}\ny\n")
    with pytest.raises(UserError, match=f"^{re.escape(str(path))}:2: must have one key"):
        read_visual_ids(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere: cannot be read .*; it names the image"):
        read_visual_ids(tmp_path / "nowhere")


def test_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="must be UTF-8 text"):
        read_visual_ids(path)
    with pytest.raises(UserError, match="must be UTF-8 text"):
        read_references(path)


def test_references_are_read_in_order(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"id": "b", "references": ["x y", "z"]}\n\n{"id": "a", "references": ["q"]}\n')
    assert list(read_references(path).items()) == [("b", ["x y", "z"]), ("a", ["q"])]


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        '{"id": "a"}',
        '{"id": 3, "references": ["x"]}',
        '{"id": "a", "references": []}',
        '{"id": "a", "references": "x"}',
        '{"id": "a", "references": [1]}',
    ],
)
def test_line_that_is_no_reference_is_named(tmp_path, line):
    path = tmp_path / "r.jsonl"
    path.write_text('{"id": "ok", "references": ["x"]}\n' + line + "\n")
    with pytest.raises(UserError, match=r"r\.jsonl:2: must be "):
        read_references(path)


def test_repeated_and_missing_references_are_named(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"id": "a", "references": ["x"]}\n' * 2)
    with pytest.raises(UserError, match=r":2: the id 'a' stands in an earlier line already\.$"):
        read_references(path)
    with pytest.raises(UserError, match=r"cannot be read .*; it holds the references"):
        read_references(tmp_path / "none")


@pytest.mark.parametrize("read", [read_visual_ids, read_references])
def test_folder_in_place_of_a_file_is_named(tmp_path, read):
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory\)"):
        read(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    path = tmp_path / "train.visual_ids"
    path.write_bytes(b"\xef\xbb\xbfa.jpg\tb.jpg\nc.jpg\td.jpg\n")
    assert read_visual_ids(str(path)) == ["a.jpg\tb.jpg", "c.jpg\td.jpg"]


def test_words_of_oov_tokens_are_read_in_order(tmp_path):
    path = tmp_path / "unknowns.jsonl"
    path.write_text('["zebra", "café"]\n[]\n', encoding="utf-8")
    assert read_oov_words(str(path)) == [["zebra", "café"], []]


@pytest.mark.parametrize("line", ['{"0": "zebra"}', "zebra", "[1]", ""])
def test_a_line_that_is_no_list_of_words_is_named(tmp_path, line):
    path = tmp_path / "unknowns.jsonl"
    path.write_text(f'["a"]\n{line}\n[]\n')
    with pytest.raises(UserError, match=r"unknowns\.jsonl:2: must be a JSON list of words"):
        read_oov_words(str(path))


def test_files_of_words_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(UserError, match=r"gone\.jsonl: cannot be read .*; it holds the words that"):
        read_oov_words(str(tmp_path / "gone.jsonl"))
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(UserError, match="bytes:1: must be UTF-8 text"):
        read_oov_words(str(tmp_path / "bytes"))
    with pytest.raises(UserError, match="cannot be read"):
        read_oov_words(str(tmp_path))


def test_the_list_is_empty_where_there_is_none(tmp_path):
    assert read_missing_images(tmp_path) == frozenset()


def test_the_list_gives_ids(tmp_path):
    (tmp_path / "missing_images.txt").write_text("12\nein Bild.jpg\n")
    assert read_missing_images(str(tmp_path)) == frozenset({"12", "ein Bild.jpg"})


def test_an_empty_line_is_refused(tmp_path):
    (tmp_path / "missing_images.txt").write_text("12\n \n13\n")
    with pytest.raises(UserError, match=r"missing_images.txt:2: must have the id of an image"):
        read_missing_images(tmp_path)
