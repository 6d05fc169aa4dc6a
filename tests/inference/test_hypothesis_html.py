"""Hypotheses in notebooks: what is shown of images, stories, prompts and transcripts."""

import base64
import io
import re
import tempfile

import numpy as np
import pytest
import torch
from PIL import Image

from fairseq_mm.extract.data_uris import jpeg_uri
from fairseq_mm.inference.caption_processor import get_known_image
from fairseq_mm.inference.hypothesis import Hypothesis
from fairseq_mm.inference.hypothesis_html import SIDE, STORY_SIDE
from fairseq_mm.inference.prompt_processor import Prompt
from fairseq_mm.inference.video_processor import Transcript


def show(source, text="a <b> & c", sentences=()):
    scores = {"score": -1.23456, "tokens": [4, 2], "positional_scores": [-1.0, -1.5]}
    hypothesis = Hypothesis(
        text=text, line=text, sentences=list(sentences), source=source, **scores
    )
    return hypothesis._repr_html_()


def thumbnails(page):
    uris = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    return [Image.open(io.BytesIO(base64.b64decode(uri))) for uri in uris]


@pytest.fixture
def red(tmp_path):
    path = tmp_path / 'a "red" <one>.png'
    Image.new("RGB", (600, 300), (250, 0, 0)).save(path)
    return path


@pytest.mark.parametrize("form", ["path", "text", "bytes", "pil", "array"])
def test_the_image_of_a_caption_is_a_small_thumbnail(red, form):
    forms = {
        "path": lambda: red,
        "text": lambda: str(red),
        "bytes": red.read_bytes,
        "pil": lambda: Image.open(red),  # its `text` is a dictionary of the PNG file
        "array": lambda: np.asarray(Image.open(red)),
    }
    page = show(forms[form]())
    (image,) = thumbnails(page)
    assert image.size == (SIDE, SIDE // 2)
    assert image.getpixel((50, 50)) == pytest.approx((250, 0, 0), abs=4)
    assert "a &lt;b&gt; &amp; c" in page
    assert "score -1.2346" in page
    assert "<b>" not in page
    assert "<one>" not in page
    assert len(page) < 20_000


def test_a_thumbnail_leaves_the_image_as_it_is():
    image = Image.new("RGB", (60, 30))
    assert jpeg_uri(image, side=20).startswith("data:image/jpeg;base64,")
    assert image.size == (60, 30)


def test_an_image_that_is_gone_is_named(tmp_path):
    page = show(str(tmp_path / "<gone>.jpg"))
    assert "&lt;gone&gt;.jpg: No such file" in page
    assert "<img" not in page
    assert "a &lt;b&gt; &amp; c" in page


def test_images_of_a_story_are_in_order_with_their_sentences(tmp_path):
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250)]
    images = [np.full((20, 30, 3), colour, dtype=np.uint8) for colour in colours]
    page = show([images[0], None, *images[1:]], sentences=["one", "two", "<three>", "four"])
    shown = thumbnails(page)
    for image, colour in zip(shown, colours):
        assert image.getpixel((5, 5)) == pytest.approx(colour, abs=6)
    assert max(shown[0].size) <= STORY_SIDE
    parts = re.findall(r"<img|one|two|&lt;three&gt;|four", page)
    assert parts == ["<img", "one", "two", "<img", "&lt;three&gt;", "<img", "four"]


def test_prompts_and_transcripts_are_folded():
    prompt = Prompt("a <door>", ["a", "<door>"], [4, 5, 2])
    assert "<details><summary>prompt</summary>a &lt;door&gt;</details>" in show(prompt)
    transcript = Transcript("hi & bye", torch.tensor([4, 2]), [], 2, 0, True)
    assert "<details><summary>transcript</summary>hi &amp; bye</details>" in show(transcript)


def test_without_a_source_there_is_the_text():
    page = show(None)
    assert page.startswith("<div><div>a &lt;b&gt; &amp; c</div>")
    assert "<img" not in page


def test_images_that_can_be_read_again_are_known(red):
    with open(red, "rb") as file:
        assert get_known_image(file) == str(red)
    assert get_known_image(io.BytesIO(red.read_bytes())) is None
    with tempfile.TemporaryFile() as file:  # its name is a number
        assert get_known_image(file) is None
    assert get_known_image(np.zeros((1, 4), dtype=np.float32)) is None
    assert get_known_image(b"content") == b"content"
    assert get_known_image(None) is None


def test_the_repr_has_no_image():
    hypothesis = Hypothesis("a", -1.0, [2], [-1.0], "a", source=b"\x00" * 9000)
    assert len(repr(hypothesis)) < 200
