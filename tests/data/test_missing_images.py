"""The list of missing images of a data folder."""

import pytest

from fairseq_mm.data.missing_images import read_missing_images
from fairseq_mm.errors import UserError


def test_the_list_is_empty_where_there_is_none(tmp_path):
    assert read_missing_images(tmp_path) == frozenset()


def test_the_list_gives_ids(tmp_path):
    (tmp_path / "missing_images.txt").write_text("12\nein Bild.jpg\n")
    assert read_missing_images(str(tmp_path)) == frozenset({"12", "ein Bild.jpg"})


def test_an_empty_line_is_refused(tmp_path):
    (tmp_path / "missing_images.txt").write_text("12\n \n13\n")
    with pytest.raises(UserError, match=r"missing_images.txt:2: must have the id of an image"):
        read_missing_images(tmp_path)
