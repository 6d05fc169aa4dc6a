"""Sentence -> words, by each tokeniser."""

import re

import pytest

from fairseq_mm.data.caption_text import CaptionTokenizer, reserved_token


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man riding a motorcycle.", "a man riding a motorcycle"),
        ("Two dogs, one ball!", "two dogs one ball"),
        ('A sign says "STOP".', "a sign says stop"),
        ("a black-and-white dog in a t-shirt", "a black-and-white dog in a t-shirt"),
        ("the dog's ball and the dogs' toys", "the dog 's ball and the dogs toys"),
        ("the dog 's ball", "the dog 's ball"),
        ("They don't run; it isn\u2019t far", "they do n't run it is n't far"),
        ("the 'quoted' word", "the quoted word"),
        ("1,000 people, 3.5 miles", "1,000 people 3.5 miles"),
        ("a street.A man", "a street a man"),
        ("a flag of the U.S. in front", "a flag of the u.s. in front"),
        ("salt & pepper / black_white", "salt pepper black white"),
        ("  spaces\tand\u00a0more \n", "spaces and more"),
        ("une cafe\u0301 \u00e0 Gen\u00e8ve", "une caf\u00e9 \u00e0 gen\u00e8ve"),
        ("\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e\u0964",
         "\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e"),
        ("\u0e40\u0e14\u0e47\u0e01", "\u0e40\u0e14\u0e47\u0e01"),
        ("... !?", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_words_are_lower_cased_without_punctuation(text, words):
    assert " ".join(CaptionTokenizer("words")(text)) == words


def test_punctuation_and_case_stay_on_request():
    tokenize = CaptionTokenizer("words", keep_case=True, keep_punctuation=True)
    assert tokenize('A "Big" dog... Why?') == ["A", '"', "Big", '"', "dog", "...", "Why", "?"]


def test_whitespace_splits_nowhere_else():
    assert CaptionTokenizer("whitespace")("A man 's t-shirt , wet.") == [
        "a", "man", "'s", "t-shirt", "wet.",
    ]  # fmt: skip


def test_m_rnn_keeps_separators_and_drops_a_final_full_stop():
    tokenize = CaptionTokenizer("m_rnn")
    assert tokenize("A dog's ball, red. It rolls.") == [
        "a", "dog", "'", "s", "ball", ",", "red", ".", "it", "rolls",
    ]  # fmt: skip
    assert tokenize("Is it?") == ["is", "it", "?"]
    assert tokenize(".") == []


def test_tokens_hold_no_space_whatever_the_text():
    text = "a, \"b\" ... \u2028 c\x1cd\x85e 'n' $5.00!! <unk>"
    for name in ("words", "whitespace", "m_rnn"):
        for token in CaptionTokenizer(name)(text):
            assert re.fullmatch(r"\S+", token)


def test_m_rnn_has_its_own_rules():
    assert CaptionTokenizer("m_rnn", keep_case=True)("A dog, a cat.") == [
        "a",
        "dog",
        ",",
        "a",
        "cat",
    ]


def test_control_symbols_are_found():
    assert reserved_token(["a", "</s>", "b"]) == "</s>"
    assert reserved_token(["a", "<unk>"]) is None
