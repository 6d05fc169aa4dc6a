"""Scores of systems with the intervals of their differences; signatures are folded."""

import re

from fairseq_mm.cli.report import ScoreLine, scores_section


def difference(value, interval=None, p=None):
    entry = {"difference": value, "interval": interval, "p": p}
    return {name: x for name, x in entry.items() if x is not None}


COMPARED = [
    ScoreLine("bleu4", [0.2, 0.25], [difference(0.05, (0.01, 0.09), 0.004)], "bleu|n:4"),
    ScoreLine("cider", [0.5, 0.49], [difference(-0.01, (-0.05, 0.04), 0.6)]),
    ScoreLine("meteor", [0.2, 0.25], [difference(0.05)], note="java <not> found"),
    ScoreLine("vocabulary", [None, 165.0], [None]),
]


def test_a_difference_stands_with_its_interval_and_is_bold_without_0():
    body = scores_section(COMPARED, ["x", "y"], resampling="1,000 samples").body
    table, _, folded = body.partition("<details>")
    cells = re.findall(r'<td class="number( clear)?">([^<]*)</td>', table)
    assert cells == [
        *(("", "0.20000"), ("", "0.25000"), (" clear", "+0.05000 [+0.01000, +0.09000], p 0.004")),
        *(("", "0.50000"), ("", "0.49000"), ("", "-0.01000 [-0.05000, +0.04000], p 0.600")),
        *(("", "0.20000"), ("", "0.25000"), ("", "+0.05000")),
        *(("", "-"), ("", "165"), ("", "-")),
    ]
    assert "1,000 samples" in table
    assert "java &lt;not&gt; found" in table
    assert "bleu|n:4" in folded
