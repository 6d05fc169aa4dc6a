"""Ranks by vectors against a brute-force definition, with ties."""

import numpy as np
import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.retrieval import vector_ranking
from fairseq_mm.retrieval.vector_ranking import rank_vectors


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def brute_force(images, sentences, image_of):
    """All scores in float64, then one comparison after the other."""
    scores = np.array(
        [[(i.astype(np.float64) * s).sum() for s in np.float64(sentences)] for i in images]
    )
    image_ranks, sentence_ranks = [], []
    for n, owner in enumerate(image_of):
        image_ranks.append(
            1 + sum(scores[i, n] >= scores[owner, n] for i in range(len(images)) if i != owner)
        )
    for i in range(len(images)):
        best = max(scores[i, n] for n in range(len(sentences)) if image_of[n] == i)
        wrong = [n for n in range(len(sentences)) if image_of[n] != i]
        sentence_ranks.append(1 + sum(scores[i, n] >= best for n in wrong))
    return image_ranks, sentence_ranks


def assert_equal(found, expected):
    assert found.image_ranks.tolist() == expected[0]
    assert found.sentence_ranks.tolist() == expected[1]


def random_task(seed, num_images, num_sentences, dim, levels=None):
    generator = np.random.default_rng(seed)
    image_of = np.concatenate(
        [np.arange(num_images), generator.integers(0, num_images, num_sentences - num_images)]
    )
    generator.shuffle(image_of)
    images = generator.standard_normal((num_images, dim))
    sentences = images[image_of] + generator.standard_normal((num_sentences, dim))
    if levels is None:
        return unit(images).astype(np.float32), unit(sentences).astype(np.float32), image_of
    # whole numbers: many equal scores, whatever the order of the sums
    return (
        *(np.rint(levels * v).clip(-3, 3).astype(np.float32) for v in (images, sentences)),
        image_of,
    )


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(vector_ranking, "_PRODUCT_ROWS", 13)
    monkeypatch.setattr(vector_ranking, "_PRODUCT_COLUMNS", 16)
    monkeypatch.setattr(vector_ranking, "_COMPARED_ROWS", 7)


@pytest.mark.parametrize("levels", [None, 0.3, 1])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.usefixtures("small_blocks")
def test_ranks_equal_brute_force_with_any_number_of_sentences(seed, levels):
    task = random_task(seed, 23, 61, 5, levels)
    assert_equal(rank_vectors(*task), brute_force(*task))


@pytest.mark.usefixtures("small_blocks")
def test_equal_vectors_tie_wherever_they_stand():
    images, sentences, image_of = random_task(3, 21, 55, 37)
    sentences[5:40] = sentences[4]  # a caption that many images have, in several blocks
    images[3:17] = images[2]
    assert_equal(
        rank_vectors(images, sentences, image_of), brute_force(images, sentences, image_of)
    )


def test_a_collapsed_model_gets_the_last_ranks():
    vector = unit(np.random.default_rng(4).standard_normal((1, 19))).astype(np.float32)
    image_of = np.repeat(np.arange(30), 3)
    found = rank_vectors(vector.repeat(30, 0), vector.repeat(90, 0), image_of)
    assert set(found.image_ranks.tolist()) == {30}
    assert set(found.sentence_ranks.tolist()) == {90 - 3 + 1}


def test_nearly_collapsed_vectors_equal_brute_force():
    # all cosines within the rounding of float32: only exact products tell them apart
    generator = np.random.default_rng(5)
    image_of = np.repeat(np.arange(17), 2)
    images = (1 + 1e-7 * generator.standard_normal((17, 11))).astype(np.float32)
    sentences = (1 + 1e-7 * generator.standard_normal((34, 11))).astype(np.float32)
    assert_equal(
        rank_vectors(images, sentences, image_of), brute_force(images, sentences, image_of)
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e19])
def test_vectors_of_a_broken_model_are_refused(bad):
    broken = np.eye(3)
    broken[1, 1] = bad
    with pytest.raises(UserError, match=r"^sentence vector 1 has NaN, infinite or huge values"):
        rank_vectors(np.eye(3), broken, [0, 1, 2])
