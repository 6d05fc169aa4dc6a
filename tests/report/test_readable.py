"""Numbers for readers: rounded, with a unit, and the exact number beside them."""

import pytest

from fairseq_mm.report.readable import label, main_names, readable

NUMBERS = [
    ("bleu4", 0.18225343, "18.2", "points", "0.18225343"),
    ("cider", 1.0, "100.0", "points", "1"),
    ("bleu4", 4e-9, "0.0", "points", "0.000000004"),
    ("rouge_l", -0.00001, "0.0", "points", "-0.00001"),
    ("novelty", 0.896, "89.6", "%", "0.896"),
    ("vocabulary", 12292, "12,292", "words", "12292"),
    ("length", 10.659, "10.7", "words", "10.659"),
    ("perplexity", 16.4567, "16.5", "", "16.4567"),
    ("score", -0.94351, "\u22120.944", "", "-0.94351"),
    ("meteor", None, "-", "", ""),
    ("true", 1, "1", "", "1"),
    ("score", float("inf"), "-", "", "inf"),
]


@pytest.mark.parametrize(("name", "value", "text", "unit", "exact"), NUMBERS)
def test_a_score_is_rounded_and_has_a_unit(name, value, text, unit, exact):
    assert readable(name, value) == (text, unit, exact)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0214, "+2.1"), (-0.0214, "\u22122.1"), (0.0001, "0.0"), (0.0, "0.0")]
)
def test_a_difference_has_its_sign_unless_it_is_rounded_to_0(value, text):
    assert readable("bleu4", value, is_difference=True).text == text


def test_names_are_those_of_papers():
    names = ["bleu4", "rouge1", "rouge_l", "cider", "distinct2", "seq_rep4", "my_score"]
    shown = ["BLEU-4", "ROUGE-1", "ROUGE-L", "CIDEr-D", "distinct-2", "seq-rep-4", "my score"]
    assert list(map(label, names)) == shown


def test_the_head_has_four_scores_by_importance_or_else_the_first():
    names = ["bleu1", "bleu4", "rouge_l", "rouge1", "cider", "meteor"]
    assert main_names(names) == ["cider", "bleu4", "meteor", "rouge_l"]
    assert main_names(["a", "b", "c", "d", "e"]) == ["a", "b", "c", "d"]
