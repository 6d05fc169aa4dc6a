"""One's own JSON lines -> stories by split, and every mistake in them by path and line."""

import pytest

from fairseq_mm.data.record_split import VISUAL_STORIES
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.corpus import Example
from fairseq_mm.prepare.jsonl import read_jsonl


def entry(number, **more):
    return {
        "images": [f"a{number}/{k}.jpg" for k in "pqrst"],
        "sentences": [f"{k} {number}" for k in range(5)],
        **more,
    }


def read(*paths, **options):
    return read_jsonl(VISUAL_STORIES, {None: list(paths)}, **options)


def ids_of(corpus):
    return {split: [story.id for story in stories] for split, stories in corpus.splits.items()}


def test_lines_without_a_split_are_for_training(jsonl):
    path = jsonl(entry(1), "", entry(2))
    corpus = read(path, keys="path")
    assert corpus.splits == {
        "train": [
            Example(
                {"sentences": entry(i)["sentences"]},
                f"{path}:{line}",
                str(i),
                entry(i)["images"],
                "\t".join(entry(i)["images"]),
            )
            for i, line in ((1, 1), (2, 3))
        ]
    }


def test_ids_albums_and_splits_come_from_the_lines(jsonl):
    corpus = read(
        jsonl(entry(1, id="x", album="A", split="test"), entry(1, id="y", album="B", split="train"))
    )
    assert ids_of(corpus) == {"train": ["y"], "test": ["x"]}
    assert corpus.splits["test"][0].group == "A"


def test_stories_without_an_album_are_of_one_if_of_the_same_images(jsonl):
    first, second, third = read(jsonl(entry(1), entry(1), entry(2)), keys="path").splits["train"]
    assert first.group == second.group != third.group


def wrong(name, change, **more):
    changed = entry(1, **more)
    changed[name] = change(changed.get(name))
    return changed


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([wrong("images", lambda i: i[:4])], "data.jsonl:1: `images` must be a list of 5 texts"),
        ([wrong("sentences", " ".join)], r"`sentences` must be a list of 5 texts, but is '0 1"),
        ([{"sentences": ["a"]}], "jsonl:1: must have the field `images`, but has not"),
        ([entry(1, album=["a"])], r"`album` must be text, but is \"\['a'\]\""),
        ([entry(1, id="a"), entry(2)], "jsonl:2: names no id, but .*jsonl:1 does; give one to ev"),
        ([entry(1), entry(2, album="a")], "jsonl:1: names no album, but .*jsonl:2 does"),
        (
            [entry(1), entry(2)],
            r"jsonl:2: a2/p.jpg and a1/p.jpg \(.*jsonl:1\) would both be called p.jpg in the feat",
        ),
    ],
)
def test_a_mistake_is_named_by_path_and_line(jsonl, lines, message):
    with pytest.raises(UserError, match=message):
        read(jsonl(*lines))


def albums(corpus):
    return {split: {s.group for s in stories} for split, stories in corpus.splits.items()}


def test_albums_are_drawn_with_all_their_stories(jsonl):
    lines = [entry(i, album=f"A{i // 2}", id=str(i)) for i in range(8)]
    corpus = read(jsonl(*lines), keys="path")
    corpus.draw("valid", 1, seed=3)
    corpus.draw("test", 2, seed=3)
    assert {split: len(ids) for split, ids in ids_of(corpus).items()} == {
        "train": 2, "valid": 2, "test": 4,
    }  # fmt: skip
    assert set.union(*albums(corpus).values()) == {"A0", "A1", "A2", "A3"}
    assert corpus.division == (
        "as given, 1 valid albums drawn with seed 3, 2 test albums drawn with seed 3"
    )
    again = read(jsonl(*lines[::-1]), keys="path")
    again.draw("valid", 1, seed=3)
    assert albums(again)["valid"] == albums(corpus)["valid"]
