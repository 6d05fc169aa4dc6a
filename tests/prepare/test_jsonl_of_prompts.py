"""One's own prompts and stories: what is read, drawn and refused."""

import json

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.prepare.jsonl import read_jsonl
from fairseq_mm.prepare.prompts import TABLE


@pytest.fixture
def write(tmp_path):
    def call(entries, name="data.jsonl"):
        path = tmp_path / name
        lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return call


def read(paths, *, draw=None, seed=1):
    corpus = read_jsonl(TABLE, paths)
    for split, size in (draw or {}).items():
        corpus.draw(split, size, seed=seed)
    return corpus


def sizes_of(corpus):
    return {split: len(pairs) for split, pairs in corpus.splits.items()}


def entries(number, **fields):
    """``number`` stories of prompts p0, p1, p2, p0, ..."""
    return [{"prompt": f"p{n % 3}", "story": f"s{n}", **fields} for n in range(number)]


def by_split(corpus):
    found = {split: list(pairs) for split, pairs in corpus.splits.items()}
    assert {split: len(pairs) for split, pairs in found.items()} == sizes_of(corpus)
    return found


def text_of(pair):
    return pair.texts["prompt"][0], pair.texts["story"][0]


def test_lines_say_their_split_and_id(write):
    path = write(
        [
            {"prompt": "a", "story": "b\nc", "split": "valid", "id": "x"},
            "",
            {"prompt": "d", "story": "e", "split": "train", "id": "y"},
        ]
    )
    corpus = read({None: [path]})
    found = by_split(corpus)
    assert list(corpus.splits) == ["train", "valid"]
    assert text_of(found["valid"][0]) == ("a", "b\nc")
    assert found["train"][0].where == f"{path}:3"
    assert found["train"][0].id == "y"


def test_files_can_hold_a_split_alone(write):
    first, second = write(entries(4)), write(entries(2), "valid.jsonl")
    corpus = read({None: [first], "valid": [second], "test": []})
    assert sizes_of(corpus) == {"train": 4, "valid": 2}
    assert corpus.files == [str(first), str(second)]
    assert by_split(corpus)["valid"][0].id is None
    by_split(corpus)


def test_drawn_prompts_take_all_their_stories_along(write):
    corpus = read({None: [write(entries(10))]}, draw={"valid": 1, "test": 1})
    found = by_split(corpus)
    prompts = {split: {text_of(pair)[0] for pair in pairs} for split, pairs in found.items()}
    assert all(len(several) == 1 for several in prompts.values())
    assert set.union(*prompts.values()) == {"p0", "p1", "p2"}
    assert corpus.division == (
        "as given, 1 valid prompts drawn with seed 1, 1 test prompts drawn with seed 1"
    )


def test_a_draw_depends_on_the_seed_and_not_on_the_order_of_the_file(write):
    many = [{"prompt": f"p{n}", "story": "s"} for n in range(40)]

    def drawn(lines, seed):
        corpus = read({None: [write(lines)]}, draw={"valid": 6}, seed=seed)
        return {text_of(pair)[0] for pair in by_split(corpus)["valid"]}

    assert len(drawn(many, 1)) == 6
    assert drawn(many, 1) == drawn(many[::-1], 1)
    assert drawn(many, 1) != drawn(many, 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"data.jsonl:1: not JSON \("),
        ("[1]", "data.jsonl:1: must be a JSON object, but is list instead"),
        ({"prompt": "a"}, "data.jsonl:1: field `story` is missing; found prompt"),
        ({}, "data.jsonl:1: field `prompt` is missing; found none"),
        ({"prompt": 7, "story": "b"}, "data.jsonl:1: `prompt` must be text, but is 7 instead"),
        ({"prompt": "a", "story": None}, "data.jsonl:1: `story` must be text, but is null instead"),
        (
            {"prompt": "a", "story": "b", "split": "dev"},
            'data.jsonl:1: `split` must be train, valid or test, but is "dev" instead',
        ),
        ({"prompt": "a", "story": "b", "id": 3}, "data.jsonl:1: `id` must be text, but is 3 inst"),
        ({"prompt": "a", "story": "b", "id": "x\ty"}, "data.jsonl:1: a pair's id must be text wit"),
        ('{"prompt": "\\ud800", "story": "b"}', "data.jsonl:1: text holds half a character"),
    ],
)
def test_a_malformed_line_is_named(write, line, message):
    with pytest.raises(UserError, match=message):
        read({None: [write([line])]})


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"split": "valid"}, r"data.jsonl:1: names no split, but .*data.jsonl:2 does; give one"),
        ({"id": "x"}, r"data.jsonl:1: names no id, but .*data.jsonl:2 does; give one"),
    ],
)
def test_a_field_of_some_lines_is_refused(write, second, message):
    pair = {"prompt": "a", "story": "b"}
    with pytest.raises(UserError, match=message):
        read({None: [write([pair, {**pair, **second}])]})


def test_an_empty_file_of_a_split_is_refused(write):
    empty = write([], "empty.jsonl")
    with pytest.raises(UserError, match=r"empty.jsonl: no pairs of the valid split\."):
        read({None: [write(entries(2))], "valid": [empty]})


def test_contradictions_are_refused(write, tmp_path):
    twice = write(entries(2, id="x"))
    with pytest.raises(
        UserError, match=r"data.jsonl:2: pair x was given before, at .*data.jsonl:1"
    ):
        read({None: [twice]})
    test = write(entries(1, split="test"), "test.jsonl")
    with pytest.raises(UserError, match=r"test.jsonl:1: says split test, but the file is given as"):
        read({"valid": [test]})
    with pytest.raises(UserError, match=r"must be a file, as it is read twice, but is none"):
        read({None: [tmp_path]})
    with pytest.raises(UserError, match=r"none.jsonl: cannot be read"):
        read({None: [tmp_path / "none.jsonl"]})


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        ({"valid": 3}, r"--valid-size must be between 1 and 2 \(of 3 training prompts one must be"),
        ({"valid": -1}, r"--valid-size must be between 1 and 2 .*but is -1 instead"),
        ({"valid": 2, "test": 1}, r"--test-size must be between 1 and 0 \(of 1 training prompts"),
    ],
)
def test_a_draw_that_leaves_nothing_is_refused(write, draw, message):
    with pytest.raises(UserError, match=message):
        read({None: [write(entries(9))]}, draw=draw)


def test_a_split_that_stands_there_is_not_drawn(write):
    paths = {None: [write(entries(5))], "valid": [write(entries(2), "v.jsonl")]}
    with pytest.raises(UserError, match=r"--valid-size 1: the data has 2 valid pairs already"):
        read(paths, draw={"valid": 1})
