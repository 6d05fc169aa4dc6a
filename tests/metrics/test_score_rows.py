"""Figures of a score table."""

import pytest

from fairseq_mm.metrics.score_rows import format_figure


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("bleu4", 0.1234567, "0.12346"),
        ("perplexity", 17.77777, "17.78"),
        ("length", 10.666, "10.67"),
        ("vocabulary", 257.0, "257"),
        ("cider", None, "-"),
    ],
)
def test_a_figure_has_the_decimals_of_its_kind(name, value, text):
    assert format_figure(name, value) == text


def test_decimals_can_be_chosen_for_scores():
    assert format_figure("bleu4", 0.1234567, decimals=3) == "0.123"
    assert format_figure("perplexity", 17.77777, decimals=3) == "17.78"
