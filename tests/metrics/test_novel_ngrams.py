"""Novel n-grams against naive loops, and as rows of a table."""

import random

import pytest

from fairseq_mm.metrics.score_rows import TokenizedItems
from fairseq_mm.metrics.text_scores import score_texts


def naive_counts(summary, source, n):
    novel = total = 0
    for i in range(len(summary) - n + 1):
        total += 1
        found = any(source[j : j + n] == summary[i : i + n] for j in range(len(source)))
        novel += not found
    return novel, total


def test_counts_equal_naive_loops():
    generator = random.Random(3)
    summaries, sources = (
        [[generator.choice(words) for _ in range(generator.randint(0, size))] for _ in range(40)]
        for words, size in (("abcd", 9), ("abc", 17))
    )
    items = TokenizedItems(summaries, [[[]]] * 40, "none", sources=sources)
    for n, row in enumerate(score_texts(items, ["novel_ngrams"]), start=1):
        expected = [naive_counts(*texts, n) for texts in zip(summaries, sources)]
        assert row.sums.tolist() == [list(counts) for counts in expected]


def rows_of(sources):
    return score_texts(
        TokenizedItems(
            hypotheses=[["a", "b", "x"], ["p", "q"], ["u", "v", "w"]],
            references=[[["a", "x", "y"]], [["q"]], [["u"]]],
            tokenization="none",
            sources=sources,
        ),
        ["novel_ngrams"],
    )


def test_share_is_over_all_n_grams_of_items_with_a_transcript():
    rows = rows_of([["b", "a", "b"], ["q", "p", "q"], None])
    assert [row.name for row in rows] == ["novel1", "novel2", "novel3", "novel4"]
    # words: x of 3, none of 2; bigrams: "b x" of 2, none of 1; trigram: 1 of 1; no 4-gram
    assert [row.value for row in rows] == pytest.approx([1 / 5, 1 / 3, 1, 0])
    assert rows[0].per_item == [1 / 3, 0, None]
    assert {row.scored for row in rows} == {2}
    # of the references' words x and y of 3, none of 1
    assert rows[0].note == "references: 0.50000; 1 without a transcript left out"
    assert rows[0].signature.startswith(
        "novel1|tok:none|case:mixed|punct:yes|source:transcript|mean:ngrams|version:"
    )


def test_nothing_to_compare_with_is_said():
    assert [(row.value, row.note) for row in rows_of(None)] == [
        (None, "needs --data with transcripts")
    ] * 4
    assert {row.note for row in rows_of([None] * 3)} == {"no item has a transcript"}
