"""Words of numbered unknowns are read line by line, and wrong lines named."""

import pytest

from fairseq_mm.data.unknowns_file import read_unknowns
from fairseq_mm.errors import UserError


def test_lines_are_read_in_order(tmp_path):
    path = tmp_path / "unknowns.jsonl"
    path.write_text('["zebra", "café"]\n[]\n', encoding="utf-8")
    assert read_unknowns(str(path)) == [["zebra", "café"], []]


@pytest.mark.parametrize("line", ['{"0": "zebra"}', "zebra", "[1]", ""])
def test_a_line_that_is_no_list_of_words_is_named(tmp_path, line):
    path = tmp_path / "unknowns.jsonl"
    path.write_text(f'["a"]\n{line}\n[]\n')
    with pytest.raises(UserError, match=r"unknowns\.jsonl:2: must be a JSON list of words"):
        read_unknowns(str(path))


def test_a_missing_file_and_one_that_is_no_text_are_named(tmp_path):
    with pytest.raises(UserError, match=r"gone\.jsonl: no such file; it holds the words that"):
        read_unknowns(str(tmp_path / "gone.jsonl"))
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(UserError, match="bytes: must be UTF-8 text"):
        read_unknowns(str(tmp_path / "bytes"))
    with pytest.raises(UserError, match="cannot be read"):
        read_unknowns(str(tmp_path))
