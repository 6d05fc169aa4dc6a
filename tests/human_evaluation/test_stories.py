"""Files of stories: what a line must have, and how line breaks are read."""

import json

import pytest
from annotation.stories import Story, read_stories

from fairseq_mm.errors import UserError


def test_lines_are_read_with_line_breaks_as_tokens(tmp_path):
    path = tmp_path / "a.jsonl"
    entries = [
        {"id": 7, "prompt": "[ WP ]  a", "story": "b c\n\nd <newline> e", "k": 3},
        {"id": "x", "story": "f"},
    ]
    path.write_text("\n".join(map(json.dumps, entries)) + "\n\n")
    assert read_stories(path) == [
        Story("7", "[ WP ] a", "b c <newline> <newline> d <newline> e"),
        Story("x", "", "f"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have stories, but is empty"),
        ('{"id": 1, "story": "a"}\n{"id": 2}', r"s.jsonl:2: must be \{\"id\": .*, but is \{"),
        ("no json", r"s.jsonl:1: not JSON"),
        ('{"id": 1, "story": " "}', r"s.jsonl:1: must be"),
        ('{"id": 1, "story": "a"}\n{"id": "1", "story": "b"}', r":2: must be .* no earlier line"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, text, message):
    path = tmp_path / "s.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_stories(path)
