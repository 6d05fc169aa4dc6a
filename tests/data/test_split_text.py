"""Text of a split."""

import pytest

from fairseq_mm.data.split_text import read_side, read_story_split
from fairseq_mm.errors import UserError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text/valid.wp_source").write_text("[ WP ] One\ntwo\u2028words\n", "utf-8")
    (tmp_path / "text/valid.wp_target").write_text("A story .\n\n", "utf-8")
    return tmp_path


def test_words_are_what_white_space_separates_and_lines_what_line_feeds_end(folder):
    split = read_story_split(folder, "valid")
    assert split.prompts == [["[", "WP", "]", "One"], ["two", "words"]]
    assert split.stories == [["A", "story", "."], []]


@pytest.mark.parametrize("name", ["prompts", "stories"])
def test_a_language_models_folder_finds_the_text_beside_it(folder, name):
    (folder / name).mkdir()
    assert read_side(folder / name, "valid", "wp_target")[0] == ["A", "story", "."]


def test_unequal_line_counts_name_both_files(folder):
    (folder / "text/valid.wp_source").write_text("one\n")
    with pytest.raises(
        UserError, match=r"valid.wp_source has 1 lines, but .*valid.wp_target has 2"
    ):
        read_story_split(folder, "valid")


def test_a_missing_split_names_the_command_that_writes_it(folder):
    with pytest.raises(UserError, match=r"test.wp_source: cannot be read .*prepare prompts"):
        read_story_split(folder, "test")


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "must have a text a line, but is empty"), (b"\xff\n", "UTF-8")]
)
def test_a_file_without_text_is_refused(folder, content, message):
    (folder / "text/valid.wp_source").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_side(folder, "valid", "wp_source")
