"""One's own videos are read as they stand, and every mistake is named with its line."""

import json

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.prepare.jsonl import read_jsonl, text_or_file
from fairseq_mm.prepare.videos import TABLE


def video(**changed):
    entry = {"video": "v/a.mp4", "transcript": "hello there", "summary": "A greeting.", **changed}
    return {name: value for name, value in entry.items() if value is not None}


def write(path, *entries):
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read(path, **options):
    return read_jsonl(TABLE, {None: [path]}, **options)


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
        (["{"], r"data\.jsonl:1: not JSON"),
        (["[" * 100_000], r"data\.jsonl:1: not JSON"),
        (["[]"], r":1: must be a JSON object, but is list"),
        ([video(), video(summary=None)], r":2: field `summary` is missing; found video, trans"),
        ([video(transcript=None)], r":1: field `transcript` is missing"),
        ([video(transcript=["a"])], r':1: `transcript` must be text, but is \["a"\] instead'),
        ([video(video=3)], r":1: `video` must be text, but is 3 instead"),
        ([video(split="dev")], r':1: `split` must be train, valid or test, but is "dev"'),
        ([video(split=1)], r":1: `split` must be text, but is 1"),
        ([video(transcript_file="a")], r":1: has both `transcript` and `transcript_file`"),
        (
            [video(), video(video="b", split="test")],
            r":1: names no split, but .*:2 does; give one to every",
        ),
        (
            [video(), video(video="w/a.mp4")],
            r":2: w/a\.mp4 and v/a\.mp4 \(.*:1\) would both .*keys",
        ),
        ([video(video="a\tb")], r":1: a video's id must be text without tabs"),
        ([video(video="")], r":1: a video's id must be text without tabs"),
        ([video(transcript="a.srt")], r":1: .*a\.srt: cannot be read .* A text that ends like"),
        ([video(transcript="a\0.txt")], r":1: .*null .* A text that ends like a file"),
        ([video(transcript=None, transcript_file="q")], r":1: .*q: cannot be read"),
        ([r'{"video": "a", "transcript": "\ud800", "summary": "b"}'], r":1: text holds half a"),
        ([], r"data\.jsonl: no videos"),
    ],
)
def test_mistakes_are_named(tmp_path, lines, message):
    path = write(tmp_path / "data.jsonl", *lines)
    with pytest.raises(UserError, match=message):
        read(path)


def test_repeated_paths_are_refused_without_a_remedy(tmp_path):
    path = write(tmp_path / "data.jsonl", video(), video())
    with pytest.raises(UserError, match=r"video v/a\.mp4 was given before, at .*data\.jsonl:1\.$"):
        read(path, keys="path")


def test_files_of_a_split_hold_it_alone(tmp_path):
    train = write(tmp_path / "data.jsonl", video())
    test = write(tmp_path / "test.jsonl", video(video="b"))
    corpus = read_jsonl(TABLE, {None: [train], "test": [test]})
    assert {split: len(x) for split, x in corpus.splits.items()} == {"train": 1, "test": 1}
    write(test, video(video="b", split="valid"))
    with pytest.raises(UserError, match=r"test\.jsonl:1: says split valid, but .* as test"):
        read_jsonl(TABLE, {None: [train], "test": [test]})


def test_a_draw_depends_on_seed_and_key_alone(tmp_path):
    entries = [video(video=f"{i}.mp4") for i in range(9)]
    drawn = []
    for order in (entries, entries[::-1]):
        corpus = read(write(tmp_path / "data.jsonl", *order))
        corpus.draw("valid", 3, seed=1)
        corpus.draw("test", 0, seed=1)
        assert {split: len(x) for split, x in corpus.splits.items()} == {"train": 6, "valid": 3}
        drawn.append({x.id for x in corpus.splits["valid"]})
    assert drawn[0] == drawn[1]
    assert corpus.division == "as given, 3 valid videos drawn with seed 1"
    other = read(tmp_path / "data.jsonl")
    other.draw("valid", 3, seed=2)
    assert {x.id for x in other.splits["valid"]} != drawn[0]
    with pytest.raises(UserError, match="--valid-size 1: the data has 3 valid videos already"):
        corpus.draw("valid", 1, seed=1)
    with pytest.raises(UserError, match=r"--test-size must be between 1 and 5 \(of 6 training"):
        corpus.draw("test", 6, seed=1)


@pytest.mark.parametrize("name", ["a.ass", "a.sbv", "a.MD", "a.docx", "no.lrc", "my talk.json"])
@pytest.mark.parametrize("field", ["transcript", "transcript_file"])
def test_a_file_name_is_no_transcript(tmp_path, field, name):
    if not name.startswith("no"):
        (tmp_path / name).write_text("[Script Info]")
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"video": "v.mp4", field: name, "summary": "a dog"}))
    with pytest.raises(UserError, match=rf"{name}: a transcript must be a file \.srt, \.vtt, "):
        read_jsonl(TABLE, {None: [path]})


@pytest.mark.parametrize("text", ["Yes.", "3.5", "see a.ass there", "a dog", "x" * 300])
def test_short_texts_are_no_file_names(tmp_path, text):
    assert text_or_file({"transcript": text}, "transcript", tmp_path) == text
