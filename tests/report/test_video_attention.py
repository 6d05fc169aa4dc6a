"""Heat maps of words by frames: a pixel a weight, words in their rows, seconds where they are."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from fairseq_mm.report.video_attention import Times, frames_section, heat_uri

WORDS = ["tune", "<the>", "</s>"]
KNOWN = [True, False, True]
WEIGHTS = np.array([[0.5, 0.25, 0.125, 0.125], [0.0, 0.0, 0.0, 1.0], [0.25, 0.25, 0.25, 0.25]])


def pixels_of(uri):
    kind, content = uri.split(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def test_a_pixel_is_as_opaque_as_its_weight_is_great():
    pixels = pixels_of(heat_uri(WEIGHTS / 2))
    assert pixels.shape == (3, 4, 4)
    np.testing.assert_allclose(pixels[..., 3] / 255, WEIGHTS, atol=0.5 / 255)
    span = pixels_of(heat_uri(0.2 + WEIGHTS / 100))
    np.testing.assert_array_equal(span, pixels)
    assert not pixels_of(heat_uri(np.full((2, 3), 0.5)))[..., 3].any()
    assert len(np.unique(pixels[..., :3].reshape(-1, 3), axis=0)) == 1


def test_words_and_shares_stand_in_rows_and_the_mean_above():
    section = frames_section(
        WORDS, WEIGHTS, Times(), is_known=KNOWN, video_shares=np.array([0.1, 0.42, 1.0])
    )
    words = re.search(r'<div class="words">(.*?)</div><div><img', section.body)[1]
    assert (
        words == '<div>tune</div><div class="unknown">&lt;the&gt;</div><div class="end">end</div>'
    )
    assert "<div>10 %</div><div>42 %</div><div>100 %</div>" in section.body
    heights = [float(x) for x in re.findall(r'width="1" height="(.*?)"', section.body)]
    mean = WEIGHTS.mean(axis=0)
    assert heights == pytest.approx((mean / mean.max()).tolist(), abs=1e-4)
    assert "a word's attention that a frame gets" in section.body
    assert "alike for all it would be 25 %" in section.body
    assert "<br>frames<" in section.body
    assert 'data-least="0" data-strongest="100" data-step="0"' in section.body
    over_words = frames_section(WORDS, WEIGHTS, Times(), is_known=KNOWN, sums_over_words=True).body
    assert "a frame's attention that comes from a word" in over_words
    assert "alike for all it would be 33.3 %" in over_words
    assert "<div>10 %</div>" not in over_words
