"""The drawing is well-formed and puts points where they belong."""

from xml.etree import ElementTree

from fairseq_mm.retrieval.recall_chart import recall_chart


def test_curves_run_from_the_lower_left_to_the_upper_right():
    svg = recall_chart("dev <1,000>", [50, 100], {"a & b": [75, 100], "c": [0, 100]})
    root = ElementTree.fromstring(svg)
    assert float(root.get("width")) == 460
    curves = [
        [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        for line in root.iter("{http://www.w3.org/2000/svg}polyline")
    ]
    # margins of 54 leave 352 x 252; y grows downwards
    assert curves == [[(54, 306), (230, 117), (406, 54)], [(54, 306), (230, 306), (406, 54)]]
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"dev <1,000>", "a & b", "c", "recall, %"} <= set(texts)
