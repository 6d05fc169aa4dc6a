"""Sections of ``fairseq-mm inspect``: bars as high as their counts, words, texts escaped."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from fairseq_mm.metrics.gate_scores import Histogram, gate_statistics
from fairseq_mm.report.figures import COLORS
from fairseq_mm.report.html_page import render_page
from fairseq_mm.report.inspection import (
    gate_sections,
    gates_section,
    histogram_section,
    likelihood_section,
    prompt_section,
    statistics_section,
)

EDGES = [0.46, 0.465, 0.47, 0.475, 0.48]
AVAILABILITIES = ("transcript available", "transcript not available")


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
    histogram = {"edges": EDGES, "counts": {key: [1, 0, 0, 1] for key in AVAILABILITIES}}
    result = {
        **{"statistics": {"all": {"count": 2127}}, "layers": {"one": {}}, "histogram": histogram},
        "transcript not available": rows,
    }
    *_, section = gate_sections(result)
    cells = re.findall(r"<td.*?>(.*?)</td>", section.body)
    high = ["high", "0.5000", "1 of 2,127", "learn to dance &amp; sing", "learn to dance"]
    assert cells[:5] == high
    assert cells[5:] == ["low", "0.4700", "31 of 2,127", "–", "keep &lt;b&gt;warm&lt;/b&gt;"]  # noqa: RUF001
    *_, section_of_none = gate_sections({**result, "transcript not available": []})
    assert "No such video" in section_of_none.body
    assert "://" not in render_page("Gates", [section])


WORDS = ["I", "<newline>", "<b>", "saw"]
KNOWN = [True, True, False, True]


def test_bars_go_from_the_smallest_gate_to_the_largest():
    gates = np.array([[0.2, 0.4, 0.6, 0.3], [0.7, 0.5, 0.2, 0.45]])
    body = gates_section(WORDS, KNOWN, gates).body
    heights = re.findall(r'<i class="(first|second)" style="height:(\d+)px">', body)
    assert heights == [
        ("first", "3"), ("second", "47"),
        ("first", "21"), ("second", "29"),
        ("first", "38"), ("second", "3"),
        ("first", "12"), ("second", "25"),
    ]  # fmt: skip
    assert "mean 0.375" in body
    assert "from 0.200 to 0.700" in body
    assert 'title="saw: g1 0.300, g2 0.450"' in body


def test_words_are_escaped_and_line_breaks_seen():
    body = gates_section(WORDS, KNOWN, np.full((2, 4), 0.5)).body
    assert "<b>&lt;b&gt;</b>" in body
    assert 'class="word unknown" title="&lt;b&gt;: g1' in body
    assert '<b>↵ &lt;newline&gt;</b></span><span class="break">' in body


def test_the_least_likely_word_is_the_darkest():
    body = likelihood_section(WORDS, KNOWN, np.log([0.5, 0.25, 1 / 16, 1.0])).body
    assert re.findall(r"var\(--second\) (\d+)%", body) == ["18", "35", "70", "0"]
    assert "Mean 1.75 bits a word (perplexity 3.4); the darkest has 4.0" in body


def test_a_long_story_has_several_maps_of_one_scale():
    weights = np.zeros((40, 3))
    weights[0] = [0.5, 0.004, 0.25]
    weights[39] = [0.1, 0.2, 0.7]
    body = prompt_section([f"w{i}" for i in range(40)], ["a", "&", "p" * 30], weights).body
    assert body.count("<svg") == 2
    # cells below a fiftieth of the strongest are left out
    assert re.findall(r'fill-opacity="([\d.]+)"', body) == ["0.71", "0.36", "0.14", "0.29", "1.00"]
    assert ">&amp;</text>" in body
    assert f">{'p' * 17}…</text>" in body
    assert "the darkest cell is 0.70" in body
