"""Hypotheses in notebooks: thumbnails of images, the text and its score."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from fairseq_mm.inference.hypothesis import SIDE, Hypothesis
from fairseq_mm.inference.video_processor import Transcript


def show(source):
    scores = {"score": -1.23456, "tokens": [4, 2], "positional_scores": [-1.0, -1.5]}
    return Hypothesis(text="a <b> & c", line="a", source=source, **scores)._repr_html_()


@pytest.fixture
def red(tmp_path):
    path = tmp_path / "red.png"
    Image.new("RGB", (600, 300), (250, 0, 0)).save(path)
    return path


@pytest.mark.parametrize("form", [str, lambda x: x, lambda x: x.read_bytes(), Image.open])
def test_an_image_is_a_small_thumbnail(red, form):
    page = show(form(red))
    assert len(re.findall(r'src="data:image/jpeg;base64,[^"]+"', page)) == 1
    assert "a &lt;b&gt; &amp; c" in page
    assert "score -1.2346" in page
    assert len(page) < 20_000
    assert page == show(np.asarray(Image.open(red)))
    assert SIDE == 224


def test_images_of_stories_that_are_gone_or_missing_are_left_out(red):
    page = show([str(red), None, "<gone>.jpg"])
    assert page.count("<img ") == 1
    assert "<gone>" not in page


def test_texts_are_shown_without_their_source():
    transcript = Transcript("the <script>", torch.tensor([2]), [], 2, 0, True)
    assert show(transcript) == show(None)
    assert "script" not in show(transcript)
