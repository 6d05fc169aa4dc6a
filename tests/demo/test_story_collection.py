"""The demo's stories: reproducible, true, and checked against their own images."""

import json

import numpy as np
import pytest
from drawings.collection import (
    SENTENCE_KINDS,
    check_stories,
    draw_stories,
    get_story_name,
    image_names,
)
from drawings.drawn_stories import Moment
from PIL import Image

from fairseq_mm.errors import UserError

SIZES = {"train": 6, "valid": 2, "test": 3}


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path):
    draw_stories(tmp_path, SIZES, seed=4)
    return tmp_path


def test_every_story_has_five_images_and_five_right_sentences(folder):
    records = read(folder / "stories.jsonl")
    truths = read(folder / "shown.jsonl")
    assert [record["split"] for record in records] == ["train"] * 6 + ["valid"] * 2 + ["test"] * 3
    assert len(list((folder / "images").iterdir())) == 5 * 11
    stories = {}
    for record, truth in zip(records, truths):
        assert record["images"] == [f"images/{name}" for name in image_names(truth["id"])]
        assert record["id"] == truth["id"] == get_story_name(image_names(truth["id"]))
        assert all((folder / image).is_file() for image in record["images"])
        stories[truth["id"]] = record["sentences"]
    verdicts = check_stories(folder, stories)
    assert [v.key for v in verdicts] == [name for story in stories for name in image_names(story)]
    assert all(verdict.right for verdict in verdicts)
    assert all((v.kind == "first") == v.key.endswith("-1.jpg") for v in verdicts)
    assert {verdict.kind for verdict in verdicts} <= SENTENCE_KINDS.keys()


def test_images_are_dark_at_night_and_light_by_day(folder):
    for truth in read(folder / "shown.jsonl"):
        for name, record in zip(image_names(truth["id"]), truth["moments"]):
            image = np.asarray(Image.open(folder / "images" / name).convert("L"))
            assert (np.median(image) < 128) == Moment.from_json(record).night


def test_sentences_are_checked_against_one_image_alone(folder):
    stories = {
        truth["id"]: record["sentences"]
        for truth, record in zip(read(folder / "shown.jsonl"), read(folder / "stories.jsonl"))
    }
    exchanged = stories["test-0001"][:]
    exchanged[1], exchanged[2] = exchanged[2], exchanged[1]
    short = stories["test-0003"][:3]
    verdicts = check_stories(folder, {"test-0001": exchanged, "test-0003": short})
    assert [verdict.key for verdict in verdicts if verdict.right] == [
        *(f"test-0001-{number}.jpg" for number in (1, 4, 5)),
        *(f"test-0003-{number}.jpg" for number in (1, 2, 3)),
    ]
    assert len(verdicts) == 10
    with pytest.raises(UserError, match=r"shown\.jsonl: has no story 'x'"):
        check_stories(folder, {"x": exchanged})
