"""Clips: an event in four frames, a transcript without it, and summaries that need both."""

import json
import random
from collections import Counter

import pytest
from drawings.clip_collection import (
    check_summaries,
    draw_clips,
)
from drawings.clips import (
    NAMES,
    NUM_FRAMES,
    PLACES,
    Clip,
    compose_clip,
    read_summary,
    write_summary,
)
from drawings.scenes import COLOURS

from fairseq_mm.errors import UserError

SIZES = {"train": 12, "valid": 3, "test": 5}


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def clips() -> list[Clip]:
    rng = random.Random(5)
    return [compose_clip(rng) for _ in range(200)]


@pytest.fixture
def folder(tmp_path):
    draw_clips(tmp_path / "summaries", SIZES, seed=4)
    return tmp_path / "summaries"


def test_a_summary_is_read_as_it_was_written(clips):
    rng = random.Random(7)
    for clip in clips:
        summary = write_summary(clip, rng)
        name, place, event = read_summary(summary.upper() + " .")
        assert (name, place) == (clip.name, clip.place)
        assert event in summary
    assert read_summary("the red circle turns green") is None
    assert read_summary("") is None


def test_drawn_clips_have_frames_texts_and_inputs(folder):
    records = read(folder / "clips.jsonl")
    assert Counter(record["split"] for record in records) == SIZES
    for record in records:
        frames = sorted(path.name for path in (folder / record["video"]).iterdir())
        assert frames == [f"{number}.jpg" for number in range(1, NUM_FRAMES + 1)]
    summaries = {record["id"]: record["summary"] for record in records}
    assert all(verdict.right for verdict in check_summaries(folder, summaries))
    test = [record for record in records if record["split"] == "test"]
    ids, transcripts = zip(*((record["id"], record["transcript"]) for record in test))
    inputs = {name: read(folder / f"{name}.jsonl") for name in ("test", "other_frames")}
    for lines in inputs.values():
        assert tuple(line["id"] for line in lines) == ids
    assert tuple(line["transcript"] for line in inputs["test"]) == transcripts
    swapped = tuple(line["transcript"] for line in inputs["other_frames"])
    assert swapped == (*transcripts[1:], transcripts[0])


def test_training_never_tells_what_a_test_clip_tells(tmp_path, monkeypatch):
    for name, values in (("NAMES", NAMES[:2]), ("PLACES", PLACES[:2]), ("EVENTS", ("light",))):
        monkeypatch.setattr(f"drawings.clips.{name}", values)
    monkeypatch.setattr("drawings.scenes.COLOURS", COLOURS[:2])
    monkeypatch.setattr("drawings.clip_collection.draw_frames", lambda clip, seed: [])
    draw_clips(tmp_path, {"train": 500, "test": 30}, seed=1)
    facts: dict[str, set] = {"train": set(), "test": set()}
    for record in read(tmp_path / "shown.jsonl"):
        facts[record["id"].split("-")[0]].add(Clip.from_json(record["clip"]).facts)
    assert not facts["train"] & facts["test"]
    assert len(facts["train"]) > 20


def test_each_fact_of_a_summary_is_checked(folder):
    first, second, *_ = read(folder / "clips.jsonl")
    one, other = (read_summary(record["summary"]) for record in (first, second))
    texts = {
        first["id"]: "{} shows in the {} how {}".format(*one),
        second["id"]: "in the {1} {0} shows how {2}".format(*other),
    }
    assert [tuple(v) for v in check_summaries(folder, texts)] == [
        (first["id"], True, True),
        (second["id"], True, True),
    ]
    texts[first["id"]] = "{} shows in the {} how {}".format(*other[:2], one[2])
    texts[second["id"]] = "{} shows in the {} how {}".format(*other[:2], one[2])
    verdicts = check_summaries(folder, texts)
    assert [tuple(v)[1:] for v in verdicts] == [(False, True), (True, False)]
    assert not any(v.right for v in verdicts)
    # the text of the first frames belongs to the second clip
    of_next = check_summaries(folder, texts, of_next=True)
    assert [tuple(v) for v in of_next] == [
        (second["id"], True, False),
        (first["id"], False, True),
    ]
    texts[first["id"]] = "a lie"
    assert next(tuple(v)[1:] for v in check_summaries(folder, texts)) == (False, False)
    with pytest.raises(UserError, match=r"shown\.jsonl: has no clip 'x'"):
        check_summaries(folder, {"x": "a lie"})
