"""One's own videos are read as they stand, and every mistake is named with its line."""

import json

import pytest

from fairseq_mm.data.record_split import VIDEOS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.jsonl import read_jsonl, text_or_file


def video(**changed):
    entry = {"video": "v/a.mp4", "transcript": "hello there", "summary": "A greeting.", **changed}
    return {name: value for name, value in entry.items() if value is not None}


def write(path, *entries):
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read(path, **options):
    return read_jsonl(VIDEOS, {None: [path]}, **options)


def test_texts_files_and_splits_are_read(tmp_path):
    (tmp_path / "subs").mkdir()
    (tmp_path / "subs" / "b.srt").write_text("1\n00:00:01,0 --> 00:00:02,0\n<i>Hi</i>\n")
    (tmp_path / "c").write_text("plain\ntext")
    path = write(
        tmp_path / "data.jsonl",
        "\ufeff" + json.dumps(video(split="train", note="kept apart")),
        video(video="b.mp4", transcript="subs/b.srt", split="test"),
        "",
        video(video="c.mp4", transcript=None, transcript_file="c", split="train"),
        video(video="d.mp4", transcript="It is called a.txt.", split="valid"),
    )
    corpus = read(path)
    assert list(corpus.splits) == ["train", "valid", "test"]
    found = {x.id: x for several in corpus.splits.values() for x in several}
    assert {key: x.texts["transcript"][0] for key, x in found.items()} == {
        "a.mp4": "hello there",
        "b.mp4": "Hi",
        "c.mp4": "plain\ntext",
        "d.mp4": "It is called a.txt.",
    }
    assert [x.id for x in corpus.splits["train"]] == ["a.mp4", "c.mp4"]
    assert found["c.mp4"].where == f"{path}:4"
    assert found["a.mp4"].texts["summary"] == ["A greeting."]
    assert corpus.name == "own"
    assert corpus.files == [str(path)]


@pytest.mark.parametrize(
    ("keys", "expected"), [("name", "a.mp4"), ("stem", "a"), ("path", "v/a.mp4")]
)
def test_keys_are_named_as_extract_names_them(tmp_path, keys, expected):
    path = write(tmp_path / "data.jsonl", video())
    assert read(path, keys=keys).splits["train"][0].id == expected


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([video(), video(summary=None)], r":2: must have the field `summary`, but has not"),
        ([video(transcript=["a"])], r":1: `transcript` must be text, but is \"\['a'\]"),
        (
            [video(), video(video="w/a.mp4")],
            r":2: w/a\.mp4 and v/a\.mp4 \(.*:1\) would both .*keys",
        ),
        ([video(transcript="a.srt")], r":1: .*a\.srt: cannot be read .* A text that ends like"),
        ([video(transcript="a\0.txt")], r":1: .*null .* A text that ends like a file"),
        ([video(transcript=None, transcript_file="q")], r":1: .*q: cannot be read"),
    ],
)
def test_mistakes_are_named(tmp_path, lines, message):
    path = write(tmp_path / "data.jsonl", *lines)
    with pytest.raises(UserError, match=message):
        read(path)


@pytest.mark.parametrize("name", ["a.ass", "a.sbv", "a.MD", "a.docx", "no.lrc", "my talk.json"])
@pytest.mark.parametrize("field", ["transcript", "transcript_file"])
def test_a_file_name_is_no_transcript(tmp_path, field, name):
    if not name.startswith("no"):
        (tmp_path / name).write_text("[Script Info]")
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"video": "v.mp4", field: name, "summary": "a dog"}))
    with pytest.raises(UserError, match=rf"{name}: a transcript must be a file \.srt, \.vtt, "):
        read_jsonl(VIDEOS, {None: [path]})


@pytest.mark.parametrize("text", ["Yes.", "3.5", "see a.ass there", "a dog", "x" * 300])
def test_short_texts_are_no_file_names(tmp_path, text):
    assert text_or_file({"transcript": text}, "transcript", tmp_path) == text
