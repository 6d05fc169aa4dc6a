"""Tokens of several files, one line after the other."""

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.ngrams.kneser_ney import read_token_lines


def test_lines_of_all_files_without_blank_ones(tmp_path):
    (tmp_path / "a").write_text("\ufeffa dog\n\n  two  men\n")  # a byte order mark is no word
    (tmp_path / "b").write_text("a cat")
    lines = list(read_token_lines([tmp_path / "a", str(tmp_path / "b")]))
    assert lines == [["a", "dog"], ["two", "men"], ["a", "cat"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n \n", ": must have lines of tokens, but has none."),
        (b"a dog\na <s> b\n", ":2: must be words, but has <s>."),
        (b"a dog </s>\n", ":1: must be words, but has </s>."),
        (b"a d\xf6g\n", ": cannot be read as UTF-8 text ('utf-8' codec"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        list(read_token_lines([path]))
    assert str(error.value).startswith(f"{path}{message}")


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none: cannot be read as UTF-8 text"):
        list(read_token_lines([tmp_path / "none"]))
