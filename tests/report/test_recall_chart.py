"""The drawing is well-formed and puts points where they belong."""

import re
from xml.etree import ElementTree

import pytest

from fairseq_mm.report.figures import recall_chart

SVG = "{http://www.w3.org/2000/svg}"


def test_curves_run_from_the_lower_left_to_the_upper_right():
    curves = {"a & b": [75, 100], "c": [0, 100]}
    svg = recall_chart("dev <1,000>", [50, 100], curves)
    root = ElementTree.fromstring(svg)
    places = []
    for name in curves:
        path = root.find(f".//{SVG}g[@id='{name}']/{SVG}path").get("d")
        places.append([tuple(map(float, xy)) for xy in re.findall(r"([\d.]+) ([\d.]+)", path)])
    one, other = places
    (left, ground), (middle, height), (right, top) = one
    assert middle == pytest.approx((left + right) / 2, abs=0.1)
    assert ground - height == pytest.approx(0.75 * (ground - top), abs=0.1)
    assert other == [(left, ground), (middle, ground), (right, top)]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"dev <1,000>", "a & b", "c", "recall, %"} <= set(texts)
    assert svg == recall_chart("dev <1,000>", [50, 100], curves)
