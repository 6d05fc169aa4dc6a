"""Sections of ``fairseq-mm inspect``: bars as high as their counts, words, texts escaped."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from fairseq_mm.report.figures import COLORS
from fairseq_mm.report.inspection import (
    gates_section,
    histogram_section,
    likelihood_section,
)

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
    body = histogram_section(EDGES, [40, 0, 10, 0], [0, 0, 20, 1]).body
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


WORDS = ["I", "<newline>", "<b>", "saw"]
KNOWN = [True, True, False, True]


def test_words_are_escaped_and_line_breaks_seen():
    body = gates_section(WORDS, KNOWN, np.full((2, 4), 0.5)).body
    assert "<b>&lt;b&gt;</b>" in body
    assert 'class="word unknown" title="&lt;b&gt;: g1' in body
    assert '<b>↵ &lt;newline&gt;</b></span><span class="break">' in body


def test_the_least_likely_word_is_the_darkest():
    body = likelihood_section(WORDS, KNOWN, np.log([0.5, 0.25, 1 / 16, 1.0])).body
    assert re.findall(r"var\(--second\) (\d+)%", body) == ["18", "35", "70", "0"]
    assert "Mean 1.75 bits a word (perplexity 3.4); the darkest has 4.0" in body
