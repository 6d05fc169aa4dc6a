"""Lists and numbers in the messages of subcommands."""

from fairseq_mm.cli.records import counted, list_first


def test_lists_end_in_dots_only_if_names_are_left_out():
    assert list_first([], 2) == ""
    assert list_first(["a", "b"], 2) == "a, b"
    assert list_first(["a", "b", "c"], 2) == "a, b, ..."


def test_numbers_have_the_noun_that_fits():
    assert counted(1, "story", "stories") == "1 story"
    assert counted(1200, "story", "stories") == "1,200 stories"
    assert counted(0, "word") == "0 words"
