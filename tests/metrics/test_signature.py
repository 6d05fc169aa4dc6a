"""Signatures: what decides a number stands in it."""

from fairseq_mm import __version__
from fairseq_mm.metrics.score_rows import count_label, signature


def test_properties_stand_in_the_order_given_and_none_is_left_out():
    text = signature("bleu", refs="5", tok="ptb", df=None, case="lc")
    assert text == f"bleu|refs:5|tok:ptb|case:lc|version:fairseq_mm-{__version__}"


def test_number_of_references_is_a_range_where_it_varies():
    assert count_label([["a", "b"], ["c", "d"]]) == "2"
    assert count_label([["a"], ["b"] * 4, ["c"] * 2]) == "1-4"
    assert count_label([]) == "0"
