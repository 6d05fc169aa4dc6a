"""Charts: every point at its place, round numbers at the axis."""

import re
from xml.etree import ElementTree

import pytest

from fairseq_mm.report.training_curves import curves_section, training_charts


def svg_of(body):
    return ElementTree.fromstring(re.search("<svg.*</svg>", body, re.DOTALL).group())


def points(svg, number: int) -> list[tuple[float, float]]:
    marks = svg.find(f".//g[@id='curve{number}']").iter("use")
    return [(float(mark.get("x")), float(mark.get("y"))) for mark in marks]


def test_points_lie_in_proportion_to_updates_and_values():
    curves = {"loss": {"train": {10: 4.0, 20: 1.0}, "valid": {10: 2.0, 15: 0.0}}}
    body = curves_section(training_charts(curves)).body
    svg = svg_of(body)
    (left, y4), (right, y1) = points(svg, 0)
    (x10, y2), (x15, y0) = points(svg, 1)
    assert x10 == left
    assert x15 == pytest.approx((left + right) / 2)
    assert [y1, y2, y4] == pytest.approx([y0 - n * (y0 - y4) / 4 for n in (1, 2, 4)], abs=1e-3)
    titles = [title.text for title in svg.iter("title")]
    assert titles == [
        *("train loss 4 at 10 updates", "train loss 1 at 20 updates"),
        *("valid loss 2 at 10 updates", "valid loss 0 at 15 updates"),
    ]
    texts = {text.text for text in svg.iter("text")}
    assert {"loss", "train", "valid", "updates", "0", "4"} <= texts
    assert body == curves_section(training_charts(curves)).body


def test_a_first_perplexity_of_thousands_does_not_flatten_the_others():
    section = curves_section(training_charts({"ppl": {"train": {1: 5000, 2: 30, 3: 20, 4: 15}}}))
    svg = svg_of(section.body)
    places = points(svg, 0)
    assert places[3][1] - places[1][1] > 10
    assert next(svg.iter("title")).text == "train perplexity 5000 at 1 updates"


def test_scores_of_validations_are_in_points():
    section = curves_section(training_charts({"bleu4": {"valid": {10: 0.125, 20: 0.25}}}))
    svg = svg_of(section.body)
    assert [title.text for title in svg.iter("title")] == [
        *("valid BLEU-4 12.5 at 10 updates", "valid BLEU-4 25 at 20 updates"),
    ]
    assert {"BLEU-4", "points", "24"} <= {text.text for text in svg.iter("text")}


def test_one_epoch_has_no_curve_and_constants_have_no_chart():
    once = curves_section(training_charts({"loss": {"train": {10: 4.0}}}))
    assert "One epoch only" in once.body
    assert once.is_folded
    curves = {"lr": {"train": {1: 0.1, 2: 0.1}}, "loss": {"train": {1: 2.0, 2: 1.0}}}
    assert curves_section(training_charts(curves)).body.count("<svg") == 1


def test_names_from_the_log_are_escaped():
    section = curves_section(training_charts({"<b>": {"x<y": {1: 1, 2: 2}}}))
    assert "<b>" not in section.body
    assert "x&lt;y" in section.body
