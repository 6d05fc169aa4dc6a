"""Files of stories: what a line must have, and how line breaks are read."""

import json

import pytest

from fairseq_mm.data.story_file import Story, read_stories
from fairseq_mm.errors import UserError


def test_lines_are_read_with_line_breaks_as_tokens(tmp_path):
    path = tmp_path / "a.jsonl"
    entries = [
        {"id": 7, "prompt": "[ WP ]  a", "story": "b c\n\nd <newline> e", "k": 3},
        {"id": "x", "story": "f"},
    ]
    path.write_text("\n".join(map(json.dumps, entries)) + "\n\n")
    assert read_stories(path) == [
        Story("7", "[ WP ] a", *["b c <newline> <newline> d <newline> e"] * 2),
        Story("x", "", "f", "f"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have stories, but is empty"),
        ('{"id": 1, "story": "a"}\n{"id": 1}', r"s.jsonl:2: must be \{\"id\": .*, but is '\{"),
        ("[1]", r"s.jsonl:1: must be"),
        ("no json", r"s.jsonl:1: must be .*, but is 'no json'"),
        ('{"id": true, "story": "a"}', r"s.jsonl:1: must be"),
        ('{"id": 1, "story": " "}', r"s.jsonl:1: the story of '1' is empty"),
        (
            '{"id": 1, "story": "a"}\n{"id": "1", "story": "b"}',
            r":2: the id '1' stands in an",
        ),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, text, message):
    path = tmp_path / "s.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_stories(path)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(UserError, match=r"absent: cannot be read \(No such file or directory\)"):
        read_stories(tmp_path / "absent")
    (tmp_path / "latin").write_bytes(b"\xe9")
    with pytest.raises(UserError, match="latin:1: must be UTF-8 text, but is not"):
        read_stories(tmp_path / "latin")


def test_tokens_of_a_generated_story_are_kept_beside_what_people_read(tmp_path):
    path = tmp_path / "stories.jsonl"
    path.write_text('{"id": 1, "prompt": "p", "story": "I hadn\'t.", "tokens": "I had  n\'t ."}\n')
    assert read_stories(path) == [Story("1", "p", "I hadn't.", "I had n't .")]
