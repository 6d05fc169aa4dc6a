"""Bars as high as their counts, with videos without a transcript on top; texts escaped."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from fairseq_mm.metrics.gate_scores import Histogram, gate_statistics
from fairseq_mm.report.figures import COLORS
from fairseq_mm.report.gate_histogram import (
    apart_section,
    histogram_section,
    statistics_section,
)
from fairseq_mm.report.html_page import render_page

EDGES = [0.46, 0.465, 0.47, 0.475, 0.48]


def bars_of(body):
    """Kind, left, right, bottom, top and title of each bar."""
    svg = ElementTree.fromstring(re.search("<svg.*</svg>", body, re.DOTALL).group())
    bars = []
    for kind in ("accent", "second"):
        for group in svg.iter("g"):
            if group.get("id", "").startswith(f"{COLORS[kind][1:]}-"):
                (path,) = group.iter("path")
                numbers = list(map(float, re.findall(r"-?[\d.]+", path.get("d"))))
                xs, ys = numbers[::2], numbers[1::2]
                bars.append((kind, min(xs), max(xs), max(ys), min(ys), path.find("title").text))
    return bars


def test_bars_stand_on_each_other_in_proportion():
    rest, apart = Histogram(EDGES, [40, 0, 10, 0]), Histogram(EDGES, [0, 0, 20, 1])
    body = histogram_section(rest, apart).body
    bars = bars_of(body)
    assert [bar[0] for bar in bars] == ["accent", "accent", "second", "second"]
    heights = [bottom - top for _, _, _, bottom, top, _ in bars]
    np.testing.assert_allclose(heights, [heights[0] * n / 40 for n in (40, 10, 20, 1)], rtol=1e-3)
    assert bars[2][3] == pytest.approx(bars[1][4], abs=0.1)  # on top of the others
    lefts = [bar[1] for bar in bars]
    assert lefts[1] == lefts[2]
    assert lefts[3] - lefts[2] == pytest.approx((lefts[1] - lefts[0]) / 2, abs=0.1)
    assert bars[2][2] < lefts[3]
    assert [bar[5] for bar in bars[1:]] == [
        "0.47 to 0.475: 30 videos, 20 without a transcript",
        "0.47 to 0.475: 30 videos, 20 without a transcript",
        "0.475 to 0.48: 1 video, 1 without a transcript",
    ]
    for label in ("0.4600", "0.4800", "40", "transcript not available", "mean of the forget gate"):
        assert f">{label}</text>" in body


def test_a_legend_is_there_where_there_is_something_apart():
    rest = Histogram(EDGES[:2], [3])
    assert "transcript not available" not in histogram_section(rest, Histogram(EDGES[:2], [0])).body


def test_figures_stand_in_a_table():
    groups = {"all": gate_statistics(EDGES), "a < b": gate_statistics([0.5])}
    body = statistics_section(groups).body
    heads = re.findall(r'<th scope="col" class="number">(.*?)</th>', body)
    assert heads == ["count", "mean", "std", "min", "q25", "median", "q75", "max"]
    cells = re.findall(r'<td class="number">(.*?)</td>', body)
    assert cells[:4] == ["5", "0.4700", "0.0071", "0.4600"]
    assert cells[8:11] == ["1", "0.5000", "0.0000"]
    assert "a &lt; b" in body


def test_videos_without_a_transcript_are_listed_from_the_highest_score():
    texts = {"hypothesis": "learn to dance & sing", "reference": "learn to dance"}
    rows = [
        {"id": "low", "score": 0.47, "rank": 31, "reference": "keep <b>warm</b>"},
        {"id": "high", "score": 0.5, "rank": 1, **texts},
    ]
    section = apart_section(rows, 2127)
    cells = re.findall(r"<td.*?>(.*?)</td>", section.body)
    high = ["high", "0.5000", "1 of 2,127", "learn to dance &amp; sing", "learn to dance"]
    assert cells[:5] == high
    assert cells[5:] == ["low", "0.4700", "31 of 2,127", "–", "keep &lt;b&gt;warm&lt;/b&gt;"]  # noqa: RUF001
    assert "No such video" in apart_section([], 5).body
    assert "://" not in render_page("Gates", [section])
