"""Subtitles lose all but their words, and repetitions of rolling captions alone."""

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.prepare.jsonl import read_transcript, subtitles_to_text

SRT = """1
00:00:01,000 --> 00:00:02,500
<i>Hello</i>, {\\an8}everyone\\Nhere.

2
00:00:02,500 --> 00:00:04,000  X1:100 X2:200
<font color="#fff">I &amp; you</font>

say 3 < 4 &gt; 2 <3

3
00:00:04,000 --> 00:00:05,000
2019
"""

VTT = """WEBVTT - a title
Kind: captions
Language: en

STYLE
::cue { color: red }

NOTE
before --- it
all

intro
00:01.000 --> 00:02.000 align:start position:0%
<v Ann Lee>Hello<00:00:01.320><c.yellow> everyone</c>

NOTE one line
another of it

2 - a name
01:00:02.000 --> 01:00:03.000
NOTEBOOKS are
NOTE in the text
"""

# as YouTube writes automatic captions: what is new is marked word by word, then shown as it is
ROLLING = """WEBVTT

00:00:00.000 --> 00:00:02.070 align:start position:0%
\x20
so<00:00:00.320><c> tune</c><c> the</c>

00:00:02.070 --> 00:00:02.080 align:start position:0%
so tune the
\x20

00:00:02.080 --> 00:00:04.000 align:start position:0%
so tune the
low<00:00:02.500><c> string</c>

00:00:04.000 --> 00:00:04.010 align:start position:0%
low string
\x20

00:00:04.010 --> 00:00:06.000 align:start position:0%
low string
string<00:00:05.500><c> by</c><c> string</c>
"""


def test_srt_gives_its_words():
    expected = "Hello, everyone here. I & you say 3 < 4 > 2 <3 2019"
    assert subtitles_to_text(SRT) == expected
    assert subtitles_to_text(SRT.replace("\n", "\r\n")) == expected
    assert subtitles_to_text(SRT.replace("\n", "\r")) == expected
    assert subtitles_to_text("\ufeff" + SRT) == expected


def test_webvtt_gives_its_words():
    expected = "Hello everyone NOTEBOOKS are NOTE in the text"
    assert subtitles_to_text(VTT) == expected
    assert subtitles_to_text("\ufeff" + VTT) == expected


def test_rolling_captions_are_said_once():
    assert subtitles_to_text(ROLLING) == "so tune the low string string by string"


def test_rolling_captions_of_joined_lines_are_said_once():
    lines = ["so tune the", "so tune the low string", "low string", "low string and the high one"]
    assert subtitles_to_text(_srt(lines)) == "so tune the low string and the high one"


def test_captions_that_grow_by_a_word_are_said_once():
    lines = ["so", "so tune", "so tune the", "so tune the low", "so tune the low string"]
    assert subtitles_to_text(_srt(lines)) == "so tune the low string"


def test_captions_of_a_moving_window_are_said_once():
    lines = ["so tune the low string", "the low string and then", "string and then the high one"]
    expected = "so tune the low string and then the high one"
    assert subtitles_to_text(_srt(lines)) == expected
    # the third begins anew, with the word that the second ends with
    lines = ["so tune the", "so tune the low string", "string by string", "string by string we go"]
    assert subtitles_to_text(_srt(lines)) == "so tune the low string string by string we go"


def test_what_is_spoken_twice_stays():
    lines = ["No.", "No.", "I tune it.", "tune it again", "and again", "and again", "and so on"]
    assert subtitles_to_text(_srt(lines)) == " ".join(lines)
    assert subtitles_to_text(_srt(["No.", "No."])) == "No. No."


def _srt(lines):
    return "\n\n".join(
        f"{i}\n00:00:0{i},000 --> 00:00:0{i},900\n{line}" for i, line in enumerate(lines, start=1)
    )


def test_subtitles_without_any_words_are_empty():
    assert subtitles_to_text("1\n00:01,0 --> 00:02,0\n<i></i>\n") == ""
    assert subtitles_to_text("WEBVTT\n\nno time") is None


def test_files_are_read_by_their_endings(tmp_path):
    for name, content, expected in (
        ("a.SRT", b"\xef\xbb\xbf" + SRT.encode(), subtitles_to_text(SRT)),
        ("b.vtt", VTT.encode("utf-16"), subtitles_to_text(VTT)),
        ("c.txt", b"\xef\xbb\xbfone\r\n00:01 --> 00:02", "one\r\n00:01 --> 00:02"),
    ):
        (tmp_path / name).write_bytes(content)
        assert read_transcript(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.srt", b"hello", r"a\.srt: has no subtitle; a line such as 00:00:01,000 -->"),
        ("a.txt", "é".encode("latin-1"), r"a\.txt: must be UTF-8 text, but is not"),
        ("a.vtt", None, r"a\.vtt: cannot be read"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_transcript(tmp_path / name)
    (tmp_path / "folder.srt").mkdir()
    with pytest.raises(UserError, match=r"folder\.srt: cannot be read"):
        read_transcript(tmp_path / "folder.srt")
