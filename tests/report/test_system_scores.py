"""Scores of systems: rounded, with intervals of the differences; signatures folded."""

import re

from fairseq_mm.report.system_scores import (
    Difference,
    ScoreLine,
    difference_chart,
    glance_section,
    lines_of_result,
    scores_section,
)

RESULT = {
    "scores": [
        {"metric": "bleu4", "value": 0.27845, "signature": "bleu|n:4"},
        {"metric": "meteor", "value": None, "signature": "", "note": "java <not> found"},
        {"metric": "vocabulary", "value": 165.0},
        {"metric": "perplexity", "value": 23.4567},
    ]
}
COMPARED = [
    ScoreLine("bleu4", [0.2, 0.25], [Difference(0.05, (0.01, 0.09), 0.004)], "bleu|n:4"),
    ScoreLine("cider", [0.5, 0.49], [Difference(-0.01, (-0.05, 0.04), 0.6)]),
    ScoreLine("meteor", [0.2, 0.25], [Difference(0.05)]),
    ScoreLine("novelty", [None, 0.5], [None]),
]


def text_of(body):
    return re.sub(r"\s+", " ", re.sub(r"<.*?>", " ", body))


def test_scores_are_rounded_and_signatures_folded():
    body = scores_section(lines_of_result(RESULT), [""]).body
    table, _, folded = body.partition("<details>")
    assert "BLEU-4 27.8 points" in text_of(table)
    assert "different words 165 words" in text_of(table)
    assert "perplexity 23.5" in text_of(table)
    assert "java &lt;not&gt; found" in table
    assert "bleu|n:4" not in table
    assert "bleu4: 0.27845 bleu|n:4" in text_of(folded)


def test_a_difference_stands_with_its_interval_and_is_bold_without_0():
    table = scores_section(COMPARED, ["x", "y"], resampling="1,000 samples").body
    cells = re.findall(r'<td class="number( clear)?"(?: title="(p .*?)")?>([^<]*\[.*?\])<', table)
    assert cells == [
        (" clear", "p 0.004", "+5.0 [+1.0, +9.0]"),
        ("", "p 0.600", "\u22121.0 [\u22125.0, +4.0]"),
    ]
    assert "METEOR 20.0 25.0 +5.0 points" in text_of(table)
    assert "new texts - 50.0 - %" in text_of(table)
    assert "1,000 samples" in table


def test_a_difference_is_clear_if_its_interval_does_not_reach_0():
    intervals = [(0.01, 0.2), (-0.2, -0.01), (0.0, 0.2), (-0.2, 0.0), (-0.1, 0.1), None]
    clear = [Difference(0.1, interval).is_clear for interval in intervals]
    assert clear == [True, True, False, False, False, False]


def test_the_head_has_the_main_scores_of_each_system():
    shown = text_of(glance_section(COMPARED, ["x", "y"]).body)
    assert "CIDEr-D BLEU-4 METEOR x 50.0 20.0 20.0 y 49.0 25.0 25.0" in shown
    assert glance_section([], [""]).body == ""
    assert "METEOR" not in glance_section(lines_of_result(RESULT), [""]).body


def test_the_chart_has_the_differences_with_an_interval():
    drawn = difference_chart(COMPARED, ["x", "y"]).draw()
    titles = re.findall(r"<title>(.*?)</title>", drawn)
    assert titles == ["BLEU-4, y: +5.0 [+1.0, +9.0]", "CIDEr-D, y: \u22121.0 [\u22125.0, +4.0]"]
    marks = [drawn.partition(f'id="difference{place}"')[2].partition("<use")[2] for place in (0, 1)]
    colors = [re.search(r"var\(--(\w+)\)", mark).group(1) for mark in marks]
    assert colors == ["accent", "quiet"]
    assert difference_chart(COMPARED[2:], ["x", "y"]) is None
    # words have another scale than points
    words = ScoreLine("length", [9.0, 10.0], [Difference(1.0, (0.5, 1.5))])
    assert difference_chart([words], ["x", "y"]) is None
    assert difference_chart(lines_of_result(RESULT), [""]) is None
