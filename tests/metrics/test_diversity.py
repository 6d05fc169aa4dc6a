"""Diversity measures, by hand."""

import pytest

from fairseq_mm.metrics.score_rows import TokenizedItems
from fairseq_mm.metrics.text_scores import distinct_n, score_texts

TEXTS = [text.split() for text in ("a dog runs", "a dog runs", "a cat")]


def test_distinct_n_is_different_over_all():
    assert distinct_n(TEXTS, 1) == pytest.approx(4 / 8)  # a dog runs cat
    assert distinct_n(TEXTS, 2) == pytest.approx(3 / 5)  # a_dog dog_runs a_cat
    assert distinct_n(TEXTS, 4) == 0.0


def test_novelty_counts_every_text_that_is_no_training_text():
    training = [["a", "cat"], ["a", "dog"]]
    items = TokenizedItems(TEXTS, [], "none", training_texts=training)
    assert score_texts(items, ["novelty"])[0].value == pytest.approx(2 / 3)


def test_vocabulary_and_length():
    rows = {row.name: row for row in score_texts(TokenizedItems(TEXTS, [], "none"), ["diversity"])}
    assert rows["vocabulary"].value == 4
    assert rows["length"].value == pytest.approx(8 / 3)
