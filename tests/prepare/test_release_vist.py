"""VIST's official JSON -> stories in their own order, and every mistake in it by annotation."""

import json

import pytest

from fairseq_mm.prepare.releases.vist import read_vist_descriptions, read_vist_stories


def story(key, *, album="A", order=(0, 1, 2, 3, 4), **more):
    """Annotations in the order of ``order``; image and text say where each belongs."""
    return [
        {
            "story_id": key,
            "album_id": album,
            "photo_flickr_id": f"{key}{place}",
            "text": f"[male] {key} {place}",
            "worker_arranged_photo_order": place,
            **more,
        }
        for place in order
    ]


@pytest.fixture
def release(tmp_path):
    def write(*annotations, name="train.story-in-sequence.json", annotated=None):
        content = {"images": [], "annotations": [[one] for one in annotations]}
        (tmp_path / name).write_text(json.dumps(annotated or content))
        return tmp_path

    return write


def test_the_order_is_the_workers_not_the_files(release):
    first, second = story("7", order=(3, 0, 4, 2, 1)), story("5", album="B", order=(4, 3, 2, 1, 0))
    mixed = [one for pair in zip(first, second) for one in pair]
    corpus = read_vist_stories(release(*mixed))
    assert [(s.id, s.group) for s in corpus.splits["train"]] == [("7", "A"), ("5", "B")]
    for one in corpus.splits["train"]:
        assert one.visual == [f"{one.id}{place}" for place in range(5)]
        assert one.texts["sentences"] == [f"[male] {one.id} {place}" for place in range(5)]
    assert corpus.exceptions == {}


def test_val_is_valid_and_a_split_may_be_missing(release):
    release(*story("1"), name="val.story-in-sequence.json")
    folder = release(*story("2"), name="test.story-in-sequence.json")
    corpus = read_vist_stories(folder)
    assert list(corpus.splits) == ["valid", "test"]
    assert corpus.files == [str(folder / f"{s}.story-in-sequence.json") for s in ("val", "test")]
    assert corpus.deviations() == [
        "valid: 1 stories found, 4,990 expected (vist, split official)",
        "test: 1 stories found, 5,055 expected (vist, split official)",
    ]


def test_stories_that_are_not_five_sentences_at_five_positions_are_listed(release):
    moved = story("m")
    moved[3]["album_id"] = "B"
    folder = release(
        *story("4", order=(0, 1, 2, 3)),
        *story("6", order=(0, 1, 2, 3, 4, 5)),
        *story("t", order=(0, 1, 2, 3, 3)),
        *moved,
        *story("g", order=(1, 2, 3, 4, 9)),
    )
    corpus = read_vist_stories(folder)
    assert [one.id for one in corpus.splits["train"]] == ["g"]
    assert corpus.exceptions == {
        "train stories left out, not five sentences at five positions of one album": [
            "4", "6", "t", "m",
        ]
    }  # fmt: skip


def test_the_tier_of_descriptions_in_sequence_can_be_read(release):
    annotations = story("1", order=(1, 0, 2, 3, 4))
    for one in annotations:
        one["photo_order_in_story"] = one.pop("worker_arranged_photo_order")
    folder = release(*annotations, name="train.description-in-sequence.json")
    corpus = read_vist_stories(folder, tier="description-in-sequence")
    assert corpus.splits["train"][0].texts["sentences"][1] == "[male] 1 1"
    assert corpus.published == {}


def test_descriptions_in_isolation_are_gathered_by_image(release):
    annotations = [
        {"photo_flickr_id": photo, "album_id": "A", "text": text}
        for photo, text in (("8", "a dog ."), ("9", "a cat ."), ("8", "one dog ."))
    ]
    folder = release(*annotations, name="train.description-in-isolation.json")
    items = read_vist_descriptions(folder).splits["train"]
    assert [(item.id, item.texts["captions"]) for item in items] == [
        ("8", ["a dog .", "one dog ."]),
        ("9", ["a cat ."]),
    ]
