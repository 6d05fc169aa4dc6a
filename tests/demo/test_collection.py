"""The demo's data: reproducible, true, held-out combinations in every second test image only."""

import json
import random

import pytest
from drawings.captions import is_true, write_captions
from drawings.collection import (
    check_captions,
    check_found,
    draw_images,
    draw_photos,
)
from drawings.scenes import Scene, compose_scene, held_out_combinations

from fairseq_mm.errors import UserError

SIZES = {"train": 12, "valid": 3, "test": 8}


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path):
    draw_images(tmp_path, SIZES, seed=4)
    return tmp_path


def test_every_caption_is_true_of_its_image(folder):
    scenes = {
        record["id"]: Scene.from_json(record["scene"]) for record in read(folder / "shown.jsonl")
    }
    records = read(folder / "captions.jsonl")
    assert [record["split"] for record in records] == ["train"] * 12 + ["valid"] * 3 + ["test"] * 8
    for record in records:
        path = folder / record["image"]
        assert path.is_file()
        assert len(set(record["captions"])) == 3
        assert all(is_true(caption, scenes[path.name]) for caption in record["captions"])


def test_held_out_combinations_occur_in_every_second_test_image_only(folder):
    held_out = held_out_combinations(4)
    for record in read(folder / "shown.jsonl"):
        combination = Scene.from_json(record["scene"]).combination
        assert (combination in held_out) == record["unseen"]
        if not record["id"].startswith("test"):
            assert not record["unseen"]
    unseen = [record["unseen"] for record in read(folder / "shown.jsonl")[-8:]]
    assert unseen == [False, True] * 4


def test_captions_are_checked_against_one_image_alone(folder):
    records = [record for record in read(folder / "captions.jsonl") if record["split"] == "test"]
    captions = {record["image"].split("/")[1]: record["captions"][0] for record in records}
    wrong = write_captions(compose_scene(random.Random(99)), random.Random(99), 1)[0]
    captions["test-0003.jpg"] = wrong
    verdicts = check_captions(folder, captions)
    assert [verdict.right for verdict in verdicts] == [True, True, False] + [True] * 5
    assert [verdict.kind for verdict in verdicts] == ["seen", "unseen"] * 4
    with pytest.raises(UserError, match=r"shown\.jsonl: has no image 'x\.jpg'"):
        check_captions(folder, {"x.jpg": wrong})


def test_queries_are_true_of_the_first_photos(tmp_path):
    folder = tmp_path / "search"
    draw_photos(folder, images=8, queries=5, seed=4)
    queries = (folder / "queries.txt").read_text().splitlines()
    names = [f"photo-{number:04}.jpg" for number in range(1, 9)]
    assert sorted(path.name for path in (folder / "images").iterdir()) == names
    verdicts = check_found(folder, list(zip(queries, names)))
    assert [(verdict.key, verdict.right) for verdict in verdicts] == [(q, True) for q in queries]
    others = check_found(folder, list(zip(queries, names[1:])))
    assert not any(verdict.right for verdict in others)
    held_out = held_out_combinations(4)
    combinations = [
        Scene.from_json(record["scene"]).combination for record in read(folder / "shown.jsonl")
    ]
    assert [combination in held_out for combination in combinations] == [False, True] * 4
    with pytest.raises(UserError, match=r"shown\.jsonl: has no image 'x\.jpg'"):
        check_found(folder, [(queries[0], "x.jpg")])
