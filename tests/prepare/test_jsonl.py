"""One's own JSON lines become examples by split, and every mistake is named by path and line."""

import json

import pytest

from fairseq_mm.data.record_split import CAPTIONS, PROMPTS, VIDEOS, VISUAL_STORIES
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.jsonl import read_jsonl, text_or_file


def image(number, **more):
    return {"image": f"{number}.jpg", "captions": [f"caption {number}", "another"], **more}


def story(number, **more):
    images = [f"a{number}/{k}.jpg" for k in "pqrst"]
    return {"images": images, "sentences": [f"{k} {number}" for k in range(5)], **more}


def video(**changed):
    entry = {"video": "v/a.mp4", "transcript": "hello there", "summary": "A greeting.", **changed}
    return {name: value for name, value in entry.items() if value is not None}


def pair(number, **more):
    """A story of one of the prompts p0, p1 and p2."""
    return {"prompt": f"p{number % 3}", "story": f"s{number}", **more}


def ids_of(corpus):
    return {split: [example.id for example in x] for split, x in corpus.splits.items()}


def groups_of(corpus):
    found = {split: list(examples) for split, examples in corpus.splits.items()}
    assert {s: len(x) for s, x in found.items()} == {s: len(x) for s, x in corpus.splits.items()}
    return {split: {example.group for example in x} for split, x in found.items()}


def test_lines_without_a_split_are_for_training(jsonl):
    path = jsonl(image(1), "", image(2))
    corpus = read_jsonl(CAPTIONS, {None: [path]})
    assert ids_of(corpus) == {"train": ["1.jpg", "2.jpg"]}
    first, second = corpus.splits["train"]
    assert first.texts == {"captions": ["caption 1", "another"]}
    assert (second.where, second.visual) == (f"{path}:3", ["2.jpg"])
    assert (corpus.name, corpus.files) == ("own", [str(path)])


def test_splits_come_from_the_lines_or_from_several_files(jsonl):
    path = jsonl(image(1, split="test"), image(2, split="train"), image(3, split="valid"))
    corpus = read_jsonl(CAPTIONS, {None: [path]})
    assert ids_of(corpus) == {"train": ["2.jpg"], "valid": ["3.jpg"], "test": ["1.jpg"]}
    files = [jsonl(image(n), name=f"{n}.jsonl") for n in range(3)]
    corpus = read_jsonl(CAPTIONS, {None: files[:2], "valid": files[2:]})
    assert ids_of(corpus) == {"train": ["0.jpg", "1.jpg"], "valid": ["2.jpg"]}


@pytest.mark.parametrize(
    ("keys", "expected"), [("name", "b.jpg"), ("stem", "b"), ("path", "a/b.jpg")]
)
def test_the_key_is_the_path_or_a_part_of_it_or_the_id(jsonl, keys, expected):
    path = jsonl({"image": "a/b.jpg", "captions": ["x"]}, image(1, id="seven"))
    assert ids_of(read_jsonl(CAPTIONS, {None: [path]}, keys=keys)) == {"train": [expected, "seven"]}


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(image(1)).encode() + b"\r\n")
    assert ids_of(read_jsonl(CAPTIONS, {None: [path]})) == {"train": ["1.jpg"]}


def test_stories_have_albums_or_are_of_one_if_of_the_same_images(jsonl):
    lines = [story(1, id="x", album="A", split="test"), story(1, id="y", album="B", split="train")]
    corpus = read_jsonl(VISUAL_STORIES, {None: [jsonl(*lines)]})
    assert ids_of(corpus) == {"train": ["y"], "test": ["x"]}
    assert groups_of(corpus) == {"train": {"B"}, "test": {"A"}}
    path = jsonl(story(1), story(1), story(2))
    corpus = read_jsonl(VISUAL_STORIES, {None: [path]}, keys="path")
    first, second, third = corpus.splits["train"]
    assert first.group == second.group != third.group
    assert (first.id, first.visual) == ("1", story(1)["images"])


def test_pairs_are_read_anew_and_keep_line_breaks(jsonl):
    lines = [
        {"prompt": "a", "story": "b\nc", "split": "valid", "id": "x"},
        "",
        pair(1, split="train", id="y"),
    ]
    path = jsonl(*lines)
    corpus = read_jsonl(PROMPTS, {None: [path]})
    assert list(corpus.splits) == ["train", "valid"]
    for _ in range(2):
        (train,), (valid,) = corpus.splits["train"], corpus.splits["valid"]
        assert (train.id, train.where) == ("y", f"{path}:3")
        assert valid.texts == {"prompt": ["a"], "story": ["b\nc"]}


def test_transcripts_are_texts_or_files(tmp_path, jsonl):
    (tmp_path / "subs").mkdir()
    (tmp_path / "subs" / "b.srt").write_text("1\n00:00:01,0 --> 00:00:02,0\n<i>Hi</i>\n")
    (tmp_path / "c").write_text("plain\ntext")
    path = jsonl(
        video(note="kept apart"),
        video(video="b.mp4", transcript="subs/b.srt"),
        video(video="c.mp4", transcript=None, transcript_file="c"),
        video(video="d.mp4", transcript="It is called a.txt."),
    )
    examples = read_jsonl(VIDEOS, {None: [path]}).splits["train"]
    assert {x.id: x.texts["transcript"][0] for x in examples} == {
        "a.mp4": "hello there",
        "b.mp4": "Hi",
        "c.mp4": "plain\ntext",
        "d.mp4": "It is called a.txt.",
    }


@pytest.mark.parametrize("name", ["a.ass", "a.sbv", "a.MD", "a.docx", "no.lrc", "my talk.json"])
@pytest.mark.parametrize("field", ["transcript", "transcript_file"])
def test_a_file_name_is_no_transcript(tmp_path, jsonl, field, name):
    if not name.startswith("no"):
        (tmp_path / name).write_text("[Script Info]")
    path = jsonl({"video": "v.mp4", field: name, "summary": "a dog"})
    with pytest.raises(UserError, match=rf"{name}: a transcript must be a file \.srt, \.vtt, "):
        read_jsonl(VIDEOS, {None: [path]})


@pytest.mark.parametrize("text", ["Yes.", "3.5", "see a.ass there", "a dog", "x" * 300])
def test_short_texts_are_no_file_names(tmp_path, text):
    assert text_or_file({"transcript": text}, "transcript", tmp_path) == text


ONE = image(1)


@pytest.mark.parametrize(
    ("kind", "lines", "message"),
    [
        (CAPTIONS, [ONE, '{"image": '], r"data.jsonl:2: not JSON \(Expecting value"),
        (CAPTIONS, [ONE, "[1, 2]"], "data.jsonl:2: must be a JSON object, but is list instead"),
        (CAPTIONS, [ONE, {"image": "2.jpg"}], "data.jsonl:2: must have the field `captions`, but"),
        (CAPTIONS, [{"captions": ["x"]}], "data.jsonl:1: must have the field `image`, but has not"),
        (CAPTIONS, [{"image": "2", "captions": "x"}], ":1: `captions` must be a list .* is 'x'"),
        (CAPTIONS, [image(2, split="dev")], ":1: `split` must be train, valid or test, .* 'dev'"),
        (CAPTIONS, [image("a\tb")], r":1: an image's id must be .* but is 'a\\tb\.jpg'"),
        (CAPTIONS, [ONE, image("q/1")], r"2: q/1.jpg and 1.jpg \(.*:1\) would both .*keys"),
        (CAPTIONS, [ONE, image(1)], "2: image 1.jpg was given before, at .*:1; put all"),
        (
            CAPTIONS,
            [image(1, split="train"), image(1, split="test")],
            "2: image 1.jpg was given be",
        ),
        (CAPTIONS, [image(1, split="train"), image(2)], "2: names no split, but .*:1 does"),
        (CAPTIONS, [], "data.jsonl: no images"),
        (VISUAL_STORIES, [story(1, images=["a"] * 4)], ":1: `images` must be a list of 5 texts"),
        (VISUAL_STORIES, [story(1, sentences="0 1")], ":1: `sentences` must be a list of 5 texts"),
        (VISUAL_STORIES, [{"sentences": ["a"]}], ":1: must have the field `images`, but has not"),
        (VISUAL_STORIES, [story(1, album=["a"])], r"`album` must be text, but is \"\['a'\]\""),
        (VISUAL_STORIES, [story(1, id="a"), story(2)], ":2: names no id, but .*:1 does; give one"),
        (VISUAL_STORIES, [story(1), story(2, album="a")], ":1: names no album, but .*:2 does"),
        (VISUAL_STORIES, [story(1), story(2)], r":2: a2/p.jpg and a1/p.jpg \(.*:1\) would both"),
        (VIDEOS, [video(), video(summary=None)], ":2: must have the field `summary`, but has not"),
        (VIDEOS, [video(transcript=["a"])], r":1: `transcript` must be text, but is \"\['a'\]"),
        (VIDEOS, [video(transcript="a.srt")], r":1: .*a\.srt: cannot be read .* A text that ends"),
        (VIDEOS, [video(transcript="a\0.txt")], ":1: .*null .* A text that ends like a file"),
        (VIDEOS, [video(transcript=None, transcript_file="q")], ":1: .*q: cannot be read"),
        (PROMPTS, [{"prompt": "p"}], ":1: must have the field `story`, but has not"),
    ],
)
def test_a_mistake_is_named_by_path_and_line(jsonl, kind, lines, message):
    with pytest.raises(UserError, match=message):
        read_jsonl(kind, {None: [jsonl(*lines)]})


def test_a_line_of_another_split_and_a_missing_file_are_refused(jsonl, tmp_path):
    paths = {None: [jsonl(ONE)], "valid": [jsonl(image(2, split="test"), name="valid.jsonl")]}
    with pytest.raises(UserError, match=r"valid.jsonl:1: says split test, .* given as valid"):
        read_jsonl(CAPTIONS, paths)
    with pytest.raises(UserError, match=r"none.jsonl: cannot be read \(No such file"):
        read_jsonl(CAPTIONS, {None: [tmp_path / "none.jsonl"]})


def test_a_drawn_split_depends_on_seed_and_ids_alone(jsonl):
    entries = [image(number) for number in range(23)]

    def drawn(entries, seed):
        corpus = read_jsonl(CAPTIONS, {None: [jsonl(*entries)]})
        corpus.draw("valid", 5, seed=seed)
        ids = {split: set(x) for split, x in ids_of(corpus).items()}
        assert (len(ids["train"]), len(ids["valid"])) == (18, 5)
        assert not ids["train"] & ids["valid"]
        return ids["valid"]

    assert drawn(entries, 1) == drawn(entries[::-1], 1)
    assert drawn(entries, 1) != drawn(entries, 2)


def test_two_drawn_splits_do_not_overlap_and_are_no_deviation(jsonl):
    corpus = read_jsonl(CAPTIONS, {None: [jsonl(*[image(number) for number in range(11)])]})
    corpus.published = {"train": 11}
    corpus.draw("valid", 3, seed=1)
    corpus.draw("test", 2, seed=1)
    assert [(split, len(x)) for split, x in corpus.splits.items()] == [
        ("train", 6), ("valid", 3), ("test", 2),
    ]  # fmt: skip
    everything = [key for ids in ids_of(corpus).values() for key in ids]
    assert sorted(everything) == sorted(f"{number}.jpg" for number in range(11))
    assert corpus.division == (
        "as given, 3 valid images drawn with seed 1, 2 test images drawn with seed 1"
    )
    # of the published 11, 5 are in the drawn splits
    assert corpus.deviations() == []
    for size in (1, 6):
        with pytest.raises(UserError, match=rf"--valid-size must be below 6, .* it is {size}, and"):
            corpus.draw("valid", size, seed=1)


@pytest.mark.parametrize(
    ("kind", "lines", "sizes", "nouns"),
    [
        (PROMPTS, [pair(n) for n in range(10)], [4, 3, 3], "prompts"),
        (
            VISUAL_STORIES,
            [story(n, album=f"A{n // 2}", id=str(n)) for n in range(8)],
            [4, 2, 2],
            "albums",
        ),
    ],
)
def test_groups_are_drawn_with_all_their_examples(jsonl, kind, lines, sizes, nouns):
    corpora = []
    for order in (1, -1):
        corpus = read_jsonl(kind, {None: [jsonl(*lines[::order])]}, keys="path")
        corpus.draw("valid", 1, seed=3)
        corpus.draw("test", 1, seed=3)
        corpora.append(corpus)
    groups = groups_of(corpora[0])
    assert groups == groups_of(corpora[1])
    assert sum(map(len, groups.values())) == len(set.union(*groups.values()))
    assert sorted((len(x) for x in corpora[0].splits.values()), reverse=True) == sizes
    assert corpora[0].division == (
        f"as given, 1 valid {nouns} drawn with seed 3, 1 test {nouns} drawn with seed 3"
    )
