"""The plane of words and images: places, scale, labels apart, and escaping."""

import base64
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from fairseq_mm.report.figures import PlotPoint, plot_section
from fairseq_mm.report.thumbnails import jpeg_uri

URI = jpeg_uri(Image.new("RGB", (90, 60), (200, 30, 40)))


def svg_of(points, shares=(0.5, 0.25)):
    body = plot_section(points, shares).body
    return ElementTree.fromstring(re.search("<svg.*</svg>", body, re.DOTALL).group())


def place_of(svg, number):
    """Pixels of a point's dot."""
    (use,) = svg.find(f".//g[@id='point{number}']").iter("use")
    return float(use.get("x")), float(use.get("y"))


def labels_of(svg, words):
    """Horizontal range and ground line of each word's label."""
    boxes = {}
    for text in svg.iter("text"):
        if text.text in words:
            width = 5.2 * len(text.text)
            style = text.get("style")
            x, y = float(text.get("x")), float(text.get("y"))
            shift = 1.0 if "anchor: end" in style else 0.5 if "anchor: middle" in style else 0.0
            boxes[text.text] = (x - shift * width, x + (1 - shift) * width, y)
    assert len(boxes) == len(words)
    return list(boxes.values())


def test_words_are_labelled_and_images_shown():
    points = [
        PlotPoint("red", 0, 0, True),
        PlotPoint("a <b>.jpg", 1, 1, False, URI),
        PlotPoint("dot.jpg", 0, 1, False),
    ]
    svg = svg_of(points)
    texts = ["".join(text.itertext()) for text in svg.iter("text")]
    assert "red" in texts
    (image,) = svg.iter("image")
    assert image.find("title").text == "a <b>.jpg"
    content = base64.b64decode(image.get("href").partition(",")[2])
    shown = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
    assert np.abs(shown[10:-10, 10:-10] - (200, 30, 40)).max() < 10
    assert max(float(image.get("width")), float(image.get("height"))) == pytest.approx(64, abs=2)
    assert svg.find(".//g[@id='point2']//title").text == "dot.jpg"
    assert "first principal component, 50 % of the variance" in texts
    assert "second principal component, 25 % of the variance" in texts


def test_both_axes_have_one_scale_and_y_goes_up():
    points = [PlotPoint(str(i), x, y, False) for i, (x, y) in enumerate([(-1, 0), (1, 0), (0, 1)])]
    svg = svg_of(points)
    (x0, y0), (x1, y1), (x2, y2) = (place_of(svg, number) for number in range(3))
    assert y0 == pytest.approx(y1)
    assert x2 == pytest.approx((x0 + x1) / 2)
    assert y0 - y2 == pytest.approx((x1 - x0) / 2, rel=5e-3)
    assert x1 - x0 > 300


def test_labels_of_words_at_one_place_do_not_cover_each_other():
    words = ("rain", "snow", "fog", "sun")
    boxes = labels_of(svg_of([PlotPoint(word, 0, 0, True) for word in words]), words)
    for i, (left, right, ground) in enumerate(boxes):
        for other_left, other_right, other_ground in boxes[:i]:
            assert left >= other_right or other_left >= right or abs(ground - other_ground) >= 9
