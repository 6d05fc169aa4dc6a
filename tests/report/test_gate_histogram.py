"""Bars as high as their counts, with videos without a transcript on top; texts escaped."""

import re

import pytest

from fairseq_mm.metrics.gate_scores import Histogram, gate_statistics
from fairseq_mm.report.gate_histogram import (
    ApartRow,
    apart_section,
    histogram_section,
    statistics_section,
)
from fairseq_mm.report.html_page import render_page

EDGES = [0.46, 0.465, 0.47, 0.475, 0.48]


def bars_of(body):
    found = re.findall(
        r'<rect class="(all|apart)" x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"/>', body
    )
    return [(kind, *map(float, numbers)) for kind, *numbers in found]


def test_bars_stand_on_each_other_in_proportion():
    rest, apart = Histogram(EDGES, [40, 0, 10, 0]), Histogram(EDGES, [0, 0, 20, 1])
    bars = bars_of(histogram_section(rest, apart).body)
    assert [bar[0] for bar in bars[:4]] == ["all", "all", "apart", "apart"]
    (_, x0, y0, w0, h0), (_, x1, y1, _, h1), (_, x2, y2, _, h2), (_, x3, *_) = bars[:4]
    assert h0 == pytest.approx(4 * h1, abs=0.2)
    assert h2 == pytest.approx(2 * h1, abs=0.2)
    assert y0 + h0 == pytest.approx(y1 + h1, abs=0.2)
    assert y2 + h2 == pytest.approx(y1, abs=0.2)  # on top of the others
    assert x1 == x2
    assert x3 - x2 == pytest.approx((x1 - x0) / 2, abs=0.2)
    assert w0 < x3 - x2
    body = histogram_section(rest, apart).body
    assert "<title>0.47 to 0.475: 30 videos, 20 without a transcript</title>" in body
    assert "<title>0.475 to 0.48: 1 video, 1 without a transcript</title>" in body
    for label in ("0.46", "0.48", "40", "transcript not available"):
        assert f">{label}</text>" in body


def test_labels_are_round_however_many_bins_there_are():
    edges = [round(0.455 + 0.005 * i, 3) for i in range(40)]
    counts = [1] * 39
    body = histogram_section(Histogram(edges, counts), Histogram(edges, [0] * 39)).body
    labels = re.findall(r'text-anchor="middle">([\d.]+)</text>', body)
    assert labels == [f"{0.46 + 0.02 * i:g}" for i in range(10)]


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
    rows = [
        ApartRow("low", 0.47, 31, None, "keep <b>warm</b>"),
        ApartRow("high", 0.5, 1, "learn to dance & sing", "learn to dance"),
    ]
    section = apart_section(rows, 2127)
    cells = re.findall(r"<td.*?>(.*?)</td>", section.body)
    high = ["high", "0.5000", "1 of 2,127", "learn to dance &amp; sing", "learn to dance"]
    assert cells[:5] == high
    assert cells[5:] == ["low", "0.4700", "31 of 2,127", "–", "keep &lt;b&gt;warm&lt;/b&gt;"]  # noqa: RUF001
    assert "No such video" in apart_section([], 5).body
    assert "://" not in render_page("Gates", [section])
