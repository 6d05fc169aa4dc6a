"""One's own prompts and stories: what is read, drawn and refused."""

import json

import pytest

from fairseq_mm.data.record_split import PROMPTS
from fairseq_mm.prepare.jsonl import read_jsonl


@pytest.fixture
def write(tmp_path):
    def call(entries, name="data.jsonl"):
        path = tmp_path / name
        lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return call


def read(paths, *, draw=None, seed=1):
    corpus = read_jsonl(PROMPTS, paths)
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


def test_drawn_prompts_take_all_their_stories_along(write):
    corpus = read({None: [write(entries(10))]}, draw={"valid": 1, "test": 1})
    found = by_split(corpus)
    prompts = {split: {text_of(pair)[0] for pair in pairs} for split, pairs in found.items()}
    assert all(len(several) == 1 for several in prompts.values())
    assert set.union(*prompts.values()) == {"p0", "p1", "p2"}
    assert corpus.division == (
        "as given, 1 valid prompts drawn with seed 1, 1 test prompts drawn with seed 1"
    )
