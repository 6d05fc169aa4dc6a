"""What becomes of examples whose images or videos are missing."""

import pytest

from fairseq_mm.data.record_split import CAPTIONS, VISUAL_STORIES
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import captioned_image
from fairseq_mm.prepare.corpus import Corpus, Example


def corpus():
    """Story 1 is whole, of story 2 image c and the double d are missing, of story 3 all."""
    images = {"1": "aabbe", "2": "acddb", "3": "cdcdc"}
    stories = [
        Example({"sentences": ["x"] * 5}, f"f:{key}", key, list(keys), "A")
        for key, keys in images.items()
    ]
    return Corpus(VISUAL_STORIES, "own", "as given", {"train": stories, "test": stories[:1]}, [])


MISSING = {"c": "no such file", "d": "is empty", "z": "no such file"}


def ids_of(stories):
    return [story.id for story in stories]


def test_stories_of_missing_images_are_dropped_but_stay_references():
    got = corpus()
    got.leave_out_missing(MISSING, policy="drop")
    assert ids_of(got.splits["train"]) == ["1"]
    assert ids_of(got.further_references["train"]) == ["2", "3"]
    assert got.missing == {"c": "no such file", "d": "is empty"}
    assert got.exceptions == {
        "train images missing": ["c", "d"],
        "train stories left out, images missing": ["2", "3"],
    }


def test_stories_of_missing_images_are_kept_if_a_image_is_left():
    got = corpus()
    got.leave_out_missing(MISSING, policy="keep")
    assert ids_of(got.splits["train"]) == ["1", "2"]
    assert got.splits["train"][1].visual == list("acddb")
    assert got.exceptions == {
        "train images missing": ["c", "d"],
        "train stories left out, images missing": ["3"],
        "train stories kept with images masked": ["2"],
    }


@pytest.mark.parametrize("policy", ["drop", "keep", "refuse"])
def test_nothing_changes_where_nothing_is_missing(policy):
    got = corpus()
    got.leave_out_missing({"z": "no such file"}, policy=policy)
    assert got == corpus()


def test_nothing_is_left_of_a_caption_without_its_image():
    images = [captioned_image(f"{i}.jpg", ["x"], f"f:{i}") for i in range(3)]
    got = Corpus(CAPTIONS, "own", "as given", {"train": images}, [])
    got.leave_out_missing({"1.jpg": "gone"}, policy="drop")
    assert ids_of(got.splits["train"]) == ["0.jpg", "2.jpg"]
    assert got.exceptions == {"train images missing": ["1.jpg"]}
    assert got.further_references == {}
    message = "f:0: image 0.jpg is missing .gone., and so it is with all train images; do features"
    with pytest.raises(UserError, match=message):
        got.leave_out_missing(dict.fromkeys(["0.jpg", "2.jpg"], "gone"), policy="drop")
