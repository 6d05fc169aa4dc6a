"""Nearest prompts: TF-IDF cosines of a naive loop, tags, ties, and lines that are left out."""

import math
import random
from collections import Counter

import pytest

from fairseq_mm.retrieval.nearest_prompts import NearestPrompts, prompt_words


def naive_nearest(training, query, k):
    """Cosines of tf * (ln((1 + n) / (1 + df)) + 1), one pair after the other."""
    frequencies = Counter(word for prompt in training for word in set(prompt_words(prompt)))

    def vector(prompt):
        counts = Counter(word for word in prompt_words(prompt) if word in frequencies)
        weights = {
            word: count * (math.log((1 + len(training)) / (1 + frequencies[word])) + 1)
            for word, count in counts.items()
        }
        norm = math.sqrt(sum(weight**2 for weight in weights.values()))
        return {word: weight / norm for word, weight in weights.items()}

    own = vector(query)
    cosines = []
    for line, prompt in enumerate(training):
        other = vector(prompt)
        cosines.append((sum(own[word] * other.get(word, 0.0) for word in own), line))
    ranked = sorted((-round(cosine, 9), line) for cosine, line in cosines if cosine > 0)
    return [(line, -negative) for negative, line in ranked[:k]]


@pytest.mark.parametrize("k", [1, 7, 40])
def test_neighbours_are_those_of_every_pair(k):
    generator = random.Random(5)
    words = [f"w{i}" for i in range(23)]
    texts = [" ".join(generator.choices(words, k=generator.randrange(1, 9))) for _ in range(60)]
    training = texts[:53] + texts[:9]  # some prompts have two stories
    queries = [*texts[50:], "w1 unseen w2", "W3 w4", *(["w5 w6 w7"] * 70)]
    index = NearestPrompts(training)
    for query, found in zip(queries, index.search(queries, k)):
        expected = naive_nearest(training, query, k)
        assert [near.line for near in found] == [line for line, _ in expected]
        assert [near.similarity for near in found] == pytest.approx([c for _, c in expected])


def test_tags_and_case_do_not_count():
    assert prompt_words("[ WP ] A King") == ["a", "king"]
    assert prompt_words("[ WP ] [ CW ] [ TT ] a king [ WP ]") == ["a", "king", "[", "wp", "]"]
    assert prompt_words("[ a king ] dies") == ["[", "a", "king", "]", "dies"]
    assert prompt_words("[ WP ]") == ["[", "wp", "]"]
    index = NearestPrompts(["[ WP ] a dog barks", "[ CW ] A KING"])
    assert index.search(["[ WP ] a king"], 1) == [[(1, pytest.approx(1.0))]]


def test_prompts_of_equal_cosine_come_in_the_order_of_their_lines():
    training = ["x y", "a b", "b a", "a b", *["b a c"] * 30, "B A"]
    (found,) = NearestPrompts(training).search(["a b"], 5)
    assert [near.line for near in found] == [1, 2, 3, 34, 4]
    (found,) = NearestPrompts([f"a b{i}" for i in range(50)]).search(["a"], 3)
    assert [near.line for near in found] == [0, 1, 2]


def test_a_training_prompt_does_not_find_itself_where_it_is_left_out():
    training = ["a b c", "[ WP ] A b c", "a b d", "z"]
    index = NearestPrompts(training)
    found = index.search(training, 2, leave_out_same=True)
    assert [[near.line for near in lines] for lines in found] == [[2], [2], [0, 1], []]


def test_a_prompt_without_a_known_word_has_no_neighbour():
    index = NearestPrompts(["a b", "c"])
    assert index.search(["q", ""], 2) == [[], []]
    assert [len(found) for found in index.search(["q", "a"], 2)] == [0, 1]
