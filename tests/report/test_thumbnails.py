"""Thumbnails: found by any form of id, small, upright."""

import base64
import io

import pytest
from PIL import Image

from fairseq_mm.errors import UserError
from fairseq_mm.report.thumbnails import Thumbnails


def opened(uri: str) -> Image.Image:
    kind, data = uri.split(",")
    assert kind == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


@pytest.fixture
def folder(tmp_path):
    for name, size in (("dog.png", (300, 150)), ("sub/cat.jpg", (20, 30)), ("sub/dog.jpg", (9, 9))):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", size, (200, 30, 40)).save(path)
    return tmp_path


def test_images_are_made_small_and_never_larger(folder):
    thumbnails = Thumbnails([str(folder)], side=100)
    assert opened(thumbnails.data_uri("dog.png")).size == (100, 50)
    assert opened(thumbnails.data_uri("sub/cat.jpg")).size == (20, 30)


def test_a_name_that_two_images_have_stands_for_none(folder):
    thumbnails = Thumbnails([str(folder)], side=100)
    assert "dog" not in thumbnails  # dog.png and sub/dog.jpg


def test_a_broken_image_is_named(folder):
    (folder / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"broken\.jpg: is not an image"):
        Thumbnails([str(folder)], side=100).data_uri("broken.jpg")
