"""The nearest training caption: CIDEr-D of the text against each caption alone."""

import numpy as np
import pytest
from naive_cider import naive_cider_d

from fairseq_mm.metrics.cider import NearestCaption

WORDS = "a the dog cat runs sits in grass".split()  # noqa: SIM905


def random_captions(count, seed=0):
    generator = np.random.default_rng(seed)
    return [list(generator.choice(WORDS, size=generator.integers(1, 9))) for _ in range(count)]


def test_similarities_are_cider_d_with_document_frequencies_over_the_items():
    captions = random_captions(23)
    items = [f"image{i * 7 % 17}" for i in range(23)]
    by_item = [[c for c, i in zip(captions, items) if i == item] for item in dict.fromkeys(items)]
    index = NearestCaption(captions, items)
    for text in [
        *random_captions(6, seed=1),
        ["dog", "dog", "dog"],
        ["unseen", "dog", "runs"],
        ["dog"],
        [],
    ]:
        expected = [naive_cider_d(text, [caption], by_item) for caption in captions]
        np.testing.assert_allclose(index.similarities(text), expected, atol=1e-12)
        found, similarity = index.nearest(text)
        assert found == int(np.argmax(expected))
        assert similarity == pytest.approx(max(expected))


def test_a_caption_is_nearest_to_itself():
    captions = [["a", "dog", "runs", "in", "grass"], ["the", "cat", "sits", "in", "grass"]]
    index = NearestCaption([*captions, captions[0]], ["one", "two", "three"])
    assert index.nearest(captions[1]) == (1, pytest.approx(10.0))
    assert index.nearest(captions[0]).place == 0  # of equals the first
