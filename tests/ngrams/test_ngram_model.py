"""Scores of many sentences at once are those of the definition."""

import math
import random

import numpy as np
import pytest
from toy_ngrams import backed_off_log_prob, entries_of

from fairseq_mm.ngrams.kneser_ney import estimate_kneser_ney
from fairseq_mm.ngrams.ngram_model import find_ngrams


def random_sentences(count, seed):
    rng = random.Random(seed)
    return [rng.choices("abcdefg", range(1, 8), k=rng.randint(0, 6)) for _ in range(count)]


def by_definition(model, sentence):
    entries = entries_of(model)
    known = [word if word in model.words else "<unk>" for word in sentence]
    marked = ("<s>", *known, "</s>")
    return math.log(10) * sum(
        backed_off_log_prob(entries, marked[max(0, i - model.order + 1) : i], marked[i])
        for i in range(1, len(marked))
    )


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_scores_are_those_of_the_recursion(order):
    model = estimate_kneser_ney(random_sentences(30, seed=1), order=order)
    # other sentences: of known n-grams and others, without words, with unknown ones
    sentences = [*random_sentences(40, seed=2), [], ["x"], ["a", "x", "b"], list("gfx")]
    assert model.order == order
    expected = [by_definition(model, sentence) for sentence in sentences]
    found = model.log_probs(sentences)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_ngrams_are_found_or_not():
    keys = np.array([1, 7, 8, 14])  # with 5 words: (0, 1), (1, 2), (1, 3), (2, 4)
    contexts, numbers = np.array([1, 0, 2, 2, -1, 3, 1]), np.array([3, 1, 3, 4, 4, 0, 2])
    found = find_ngrams(keys, contexts, numbers, 5)
    assert found.tolist() == [2, 0, -1, 3, -1, -1, 1]
    assert find_ngrams(keys[:0], contexts, numbers, 5).tolist() == [-1] * 7
