"""Repetition between sentences: by hand, and against naive loops."""

import random

import pytest

from fairseq_mm.metrics.score_rows import TokenizedItems
from fairseq_mm.metrics.text_scores import repeated_sentences, repeated_share, score_texts

STORY = [sentence.split() for sentence in ("a dog ran", "the dog ran ran", "", "the dog sat")]


def test_story_of_one_sentence_repeats_nothing_and_has_no_share():
    assert repeated_share([["a", "a"]], 1) is None
    assert repeated_sentences([["a", "a"]]) is None
    assert repeated_share([["a"], ["a"]], 3) is None


def test_equal_sentences_are_counted_once_each():
    sentences = [["a"], ["b"], ["a"], ["a"], []]
    assert repeated_sentences(sentences) == pytest.approx(2 / 3)


def test_trigrams_between_stories_by_hand():
    stories = [[["a", "b", "c", "d"]], [["a", "b", "c"], ["b", "c", "e"]]]
    # abc bcd abc bce: 3 different of 4
    for sentences, shared in ((stories, 1 / 4), ([[["a"]]], 0)):
        items = TokenizedItems([["a"]] * len(sentences), [], "none", sentences=sentences)
        rows = {row.name: row for row in score_texts(items, ["sentences"])}
        assert rows["shared_trigrams"].value == pytest.approx(shared)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_equals_loops_over_the_formula(n):
    generator = random.Random(n)
    for _ in range(20):
        story = [
            [generator.choice("abc") for _ in range(generator.randint(0, 6))] for _ in range(5)
        ]
        shares = []
        for i in range(1, 5):
            repeated = total = 0
            for j in range(len(story[i]) - n + 1):
                total += 1
                repeated += any(
                    story[i][j : j + n] == story[k][m : m + n]
                    for k in range(i)
                    for m in range(len(story[k]) - n + 1)
                )
            if total:
                shares.append(repeated / total)
        expected = sum(shares) / len(shares) if shares else None
        assert repeated_share(story, n) == (None if expected is None else pytest.approx(expected))
