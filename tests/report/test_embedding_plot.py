"""The plane of words and images: places, scale, labels apart, and escaping."""

import re
from xml.etree import ElementTree

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.report.embedding_plot import PlotPoint, plot_section
from fairseq_mm.report.html_page import render_page

URI = "data:image/jpeg;base64,AAAA"


def svg_of(points, shares=(0.5, 0.25)):
    body = plot_section(points, shares).body
    return ElementTree.fromstring(re.search("<svg.*</svg>", body).group())


def test_words_are_labelled_and_images_shown():
    points = [
        PlotPoint("red", 0, 0, True),
        PlotPoint("a <b>.jpg", 1, 1, False, URI),
        PlotPoint("dot.jpg", 0, 1, False),
    ]
    svg = svg_of(points)
    assert [text.text for text in svg.findall("text[@class='word']")] == ["red"]
    image = svg.find("image")
    assert image.get("href") == URI
    assert image.find("title").text == "a <b>.jpg"
    assert svg.find("circle[@class='image']/title").text == "dot.jpg"
    assert any("first principal component, 50 %" in (text.text or "") for text in svg)
    assert any("second principal component, 25 %" in (text.text or "") for text in svg)


def test_both_axes_have_one_scale_and_y_goes_up():
    # spans 2 and 1: the wider one fills 760 - 2 * 56 = 648 pixels, 324 a unit
    points = [PlotPoint(str(i), x, y, False) for i, (x, y) in enumerate([(-1, 0), (1, 0), (0, 1)])]
    circles = svg_of(points).findall("circle")
    places = [(float(circle.get("cx")), float(circle.get("cy"))) for circle in circles]
    assert places == [(56, 442), (704, 442), (380, 118)]


def test_labels_of_words_at_one_place_do_not_cover_each_other():
    labels = svg_of([PlotPoint(word, 0, 0, True) for word in ("rain", "snow", "fog", "sun")])
    boxes = [
        (float(text.get("x")), float(text.get("y")), 7 * len(text.text))
        for text in labels.findall("text[@class='word']")
    ]
    for i, (x, y, width) in enumerate(boxes):
        for other_x, other_y, other_width in boxes[:i]:
            apart = x >= other_x + other_width or other_x >= x + width or abs(y - other_y) >= 14
            assert apart


def test_a_word_at_the_edge_keeps_its_label_inside():
    points = [PlotPoint("w" * 40, x, 0, True) for x in (0, 1)]
    for text in svg_of(points).findall("text[@class='word']"):
        assert 0 <= float(text.get("x")) <= 760 - 280


def test_the_section_stands_in_a_page():
    page = render_page("t", [plot_section([PlotPoint("a & b", 1, 2, True)], (1, 0))])
    assert "a &amp; b" in page


def test_mistakes_are_one_line():
    with pytest.raises(UserError, match="there are no words or images to plot"):
        plot_section([], (1, 0))
    with pytest.raises(UserError, match="the coordinates of 'x' must be finite"):
        plot_section([PlotPoint("x", float("nan"), 0, True)], (1, 0))
