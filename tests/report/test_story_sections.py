"""Sections of one story's words."""

import re

import numpy as np

from fairseq_mm.report.story_sections import (
    gates_section,
    likelihood_section,
    past_section,
    prompt_section,
)

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


def test_a_head_that_never_leaves_the_zero_slot_has_no_distance():
    row = {"layer": 2, "head": 1, "stride": 2, "zero": 1.0, "distance": None}
    body = past_section([row, {**row, "head": 3, "zero": 0.25, "distance": 7.26}]).body
    cells = re.findall(r'<td class="number">([^<]*)</td>', body)
    assert cells == ["2", "1", "2", "100.0%", "-", "2", "3", "2", "25.0%", "7.3"]
