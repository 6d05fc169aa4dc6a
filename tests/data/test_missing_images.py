"""What becomes of stories whose images are missing, and the list of those that were kept."""

import pytest

from fairseq_mm.data.missing_images import read_missing_images
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.missing_images import leave_out_missing
from fairseq_mm.prepare.visual_stories import VisualStory, VisualStoryCorpus


def corpus():
    """Story 1 is whole, of story 2 image c and the double d are missing, of story 3 all."""
    images = {"1": "aabbe", "2": "acddb", "3": "cdcdc"}
    stories = [VisualStory(i, "A", list(keys), ["x"] * 5, f"f:{i}") for i, keys in images.items()]
    return VisualStoryCorpus("own", "as given", {"train": stories, "test": stories[:1]}, [])


MISSING = {"c": "no such file", "d": "is empty", "z": "no such file"}


def ids_of(stories):
    return [story.id for story in stories]


def test_stories_of_missing_images_are_dropped_but_stay_references():
    got = corpus()
    leave_out_missing(got, MISSING, policy="drop")
    assert ids_of(got.stories["train"]) == ["1"]
    assert ids_of(got.references_only["train"]) == ["2", "3"]
    assert got.missing == {"c": "no such file", "d": "is empty"}
    assert got.exceptions == {
        "train images missing": ["c", "d"],
        "train stories left out, images missing": ["2", "3"],
    }


def test_stories_of_missing_images_are_kept_if_a_image_is_left():
    got = corpus()
    leave_out_missing(got, MISSING, policy="keep")
    assert ids_of(got.stories["train"]) == ["1", "2"]
    assert got.stories["train"][1].images == list("acddb")
    assert got.exceptions == {
        "train images missing": ["c", "d"],
        "train stories left out, images missing": ["3"],
        "train stories kept with images masked": ["2"],
    }


def test_missing_images_can_be_refused():
    message = r"f:2: image c of story 2 is missing \(no such file\); --missing drop leaves"
    with pytest.raises(UserError, match=message):
        leave_out_missing(corpus(), MISSING, policy="refuse")


@pytest.mark.parametrize("policy", ["drop", "keep", "refuse"])
def test_nothing_changes_where_nothing_is_missing(policy):
    got = corpus()
    leave_out_missing(got, {"z": "no such file"}, policy=policy)
    assert got == corpus()


def test_the_list_is_empty_where_there_is_none(tmp_path):
    assert read_missing_images(tmp_path) == frozenset()


def test_the_list_gives_ids(tmp_path):
    (tmp_path / "missing_images.txt").write_text("12\nein Bild.jpg\n")
    assert read_missing_images(str(tmp_path)) == frozenset({"12", "ein Bild.jpg"})


def test_an_empty_line_is_refused(tmp_path):
    (tmp_path / "missing_images.txt").write_text("12\n \n13\n")
    with pytest.raises(UserError, match=r"missing_images.txt:2: must have the id of an image"):
        read_missing_images(tmp_path)
