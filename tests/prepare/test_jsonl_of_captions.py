"""One's own JSON lines -> items by split, and every mistake in them by path and line."""

import json

import pytest

from fairseq_mm.data.record_split import CAPTIONS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.jsonl import read_jsonl


def read(paths, **options):
    return read_jsonl(CAPTIONS, paths, **options)


def entry(number, **more):
    return {"image": f"{number}.jpg", "captions": [f"caption {number}", "another"], **more}


def ids_of(corpus):
    return {split: [item.id for item in items] for split, items in corpus.splits.items()}


def test_lines_without_a_split_are_for_training(jsonl):
    corpus = read({None: [jsonl(entry(1), "", entry(2))]})
    assert ids_of(corpus) == {"train": ["1.jpg", "2.jpg"]}
    assert corpus.splits["train"][0].texts["captions"] == ["caption 1", "another"]


def test_splits_come_from_the_lines(jsonl):
    path = jsonl(entry(1, split="test"), entry(2, split="train"), entry(3, split="valid"))
    corpus = read({None: [path]})
    assert ids_of(corpus) == {"train": ["2.jpg"], "valid": ["3.jpg"], "test": ["1.jpg"]}


def test_splits_come_from_several_files(jsonl):
    paths = {
        None: [jsonl(entry(1), name="a.jsonl"), jsonl(entry(2), name="b.jsonl")],
        "valid": [jsonl(entry(3), name="v.jsonl")],
    }
    assert ids_of(read(paths)) == {"train": ["1.jpg", "2.jpg"], "valid": ["3.jpg"]}


def test_the_key_is_the_file_name_the_path_or_the_id(jsonl):
    path = jsonl({"image": "a/b.jpg", "captions": ["x"]}, entry(1, id="seven"))
    corpus = read({None: [path]})
    assert ids_of(corpus) == {"train": ["b.jpg", "seven"]}
    corpus = read({None: [path]}, keys="path")
    assert ids_of(corpus) == {"train": ["a/b.jpg", "seven"]}


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(entry(1)).encode() + b"\r\n")
    assert ids_of(read({None: [path]})) == {"train": ["1.jpg"]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"image": ', r"data.jsonl:2: not JSON \(Expecting value"),
        ("[" * 100_000, r"data.jsonl:2: not JSON \(brackets in brackets too deep\)"),
        ("[1, 2]", "data.jsonl:2: must be a JSON object, but is list instead"),
        ('{"image": "2.jpg"}', "data.jsonl:2: must have the field `captions`, but has not"),
        ('{"captions": ["x"]}', "data.jsonl:2: must have the field `image`, but has not"),
        ('{"image": "2", "captions": "x"}', "data.jsonl:2: `captions` must be a list .* is 'x'"),
        ('{"image": "2", "captions": ["x"], "split": "dev"}', "2: `split` must be .* but is 'dev'"),
        ('{"image": "2", "captions": ["x"], "id": 5}', "data.jsonl:2: `id` must be text, but is 5"),
        ('{"image": "a\\tb", "captions": ["x"]}', r"2: an image's id must be .* but is 'a\\tb'"),
        ('{"image": "2", "captions": ["\\ud800"]}', "data.jsonl:2: .*half a character"),
        (
            '{"image": "q/1.jpg", "captions": ["x"]}',
            r"2: q/1.jpg and 1.jpg \(.*:1\) would both",
        ),
        ('{"image": "1.jpg", "captions": ["x"]}', "2: image 1.jpg was given before, at .*:1;"),
    ],
)
def test_a_bad_line_is_named(jsonl, line, message):
    with pytest.raises(UserError, match=message):
        read({None: [jsonl(entry(1), line)]})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {None: [entry(1, split="train"), entry(1, split="test")]},
            r"train.jsonl:2: image 1.jpg was given before, at .*:1",
        ),
        ({None: [entry(1, split="train"), entry(2)]}, r"2: names no split, but .*:1 does"),
        (
            {None: [entry(1)], "valid": [entry(2, split="test")]},
            r"valid.jsonl:1: says split test, .* given as valid",
        ),
        ({None: []}, r"train.jsonl: no images"),
    ],
)
def test_files_that_contradict_themselves_are_refused(jsonl, files, message):
    paths = {
        split: [jsonl(*entries, name=f"{split or 'train'}.jsonl")]
        for split, entries in files.items()
    }
    with pytest.raises(UserError, match=message):
        read(paths)


def test_a_missing_file_and_one_that_is_not_utf8_are_named(tmp_path):
    with pytest.raises(UserError, match=r"none.jsonl: cannot be read \(No such file"):
        read({None: [tmp_path / "none.jsonl"]})
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"image": "1", "captions": ["a"]}\n{"image": "caf\xe9"}\n')
    with pytest.raises(UserError, match=r"latin.jsonl:2: must be UTF-8 text"):
        read({None: [path]})


def test_a_drawn_split_depends_on_seed_and_ids_alone(jsonl):
    entries = [entry(number) for number in range(23)]

    def drawn(entries, seed):
        corpus = read({None: [jsonl(*entries)]})
        corpus.draw("valid", 5, seed=seed)
        assert len(corpus.splits["train"]) == 18
        assert not {i.id for i in corpus.splits["train"]} & {i.id for i in corpus.splits["valid"]}
        return {item.id for item in corpus.splits["valid"]}

    assert drawn(entries, 1) == drawn(entries[::-1], 1)
    assert drawn(entries, 1) != drawn(entries, 2)
    assert len(drawn(entries, 1)) == 5


def test_two_drawn_splits_do_not_overlap_and_keep_their_order(jsonl):
    corpus = read({None: [jsonl(*[entry(number) for number in range(11)])]})
    corpus.draw("valid", 3, seed=1)
    corpus.draw("test", 2, seed=1)
    assert [len(items) for items in corpus.splits.values()] == [6, 3, 2]
    assert list(corpus.splits) == ["train", "valid", "test"]
    everything = [item.id for items in corpus.splits.values() for item in items]
    assert sorted(everything) == sorted(f"{number}.jpg" for number in range(11))
    assert corpus.division == (
        "as given, 3 valid images drawn with seed 1, 2 test images drawn with seed 1"
    )


def test_a_draw_is_no_deviation_from_the_published_size(jsonl):
    corpus = read({None: [jsonl(*[entry(number) for number in range(11)])]})
    corpus.published = {"train": 11}
    corpus.draw("valid", 3, seed=1)
    assert corpus.deviations() == []


def test_a_draw_that_cannot_be_is_refused(jsonl):
    corpus = read({None: [jsonl(entry(1), entry(2))]})
    with pytest.raises(UserError, match=r"--valid-size must be between 1 and 1 .*but is 2 instead"):
        corpus.draw("valid", 2, seed=1)
    with pytest.raises(UserError, match=r"--valid-size must be .*but is -1 instead"):
        corpus.draw("valid", -1, seed=1)
    corpus.draw("valid", 1, seed=1)
    with pytest.raises(UserError, match="--valid-size 1: the data has 1 valid images already"):
        corpus.draw("valid", 1, seed=1)
