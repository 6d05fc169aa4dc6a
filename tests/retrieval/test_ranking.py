"""Blocks of sentences, resuming, the shortlist, and both directions against naive loops."""

import numpy as np
import pytest

from fairseq_mm.retrieval.ranking import (
    nearest_images,
    rank_images,
    rank_sentences,
    sentence_blocks,
)

S, IMAGES, SAMPLED = 9, 4, 3
IMAGE_OF_SENTENCE = np.array([0, 0, 1, 3, 2, 2, 1, 3, 3])


@pytest.fixture
def log_probs():
    return np.random.default_rng(8).normal(-20, 4, (S, IMAGES + SAMPLED)).astype(np.float32)


def test_blocks_hold_every_sentence_once_and_alike_ones_together():
    sentences = [(7, 4, 2), (5, 2), (7, 4, 4, 2), (5, 2), (2,)]
    blocks = sentence_blocks(sentences, 100_000)  # 2.6 words a sentence: 2 sentences a block
    assert [len(block) for block in blocks] == [2, 2, 1]
    listed = [sentences[i] for block in blocks for i in block]
    assert listed == sorted(sentences)
    assert [len(block) for block in sentence_blocks(sentences, 10**9)] == [1] * 5
    assert [len(block) for block in sentence_blocks(sentences * 200, 1)] == [512, 488]


def test_images_are_ranked_for_each_sentence(log_probs):
    scores = log_probs[:, :IMAGES]
    first = rank_images(scores, IMAGE_OF_SENTENCE).first
    for s in range(S):
        true = IMAGE_OF_SENTENCE[s]
        better = sum(scores[s, i] >= scores[s, true] for i in range(IMAGES) if i != true)
        assert first[s] == better + 1


def test_sentences_are_ranked_for_each_image_by_the_normalised_probability(log_probs):
    scores, marginals = log_probs[:, :IMAGES], np.linspace(-30, -10, S)
    ranks = rank_sentences(scores, marginals, IMAGE_OF_SENTENCE)
    for i in range(IMAGES):
        values = [scores[s, i] - marginals[s] for s in range(S)]
        best = max(values[s] for s in range(S) if IMAGE_OF_SENTENCE[s] == i)
        false = [values[s] for s in range(S) if IMAGE_OF_SENTENCE[s] != i]
        assert ranks.first[i] == 1 + sum(value >= best for value in false)


def test_a_shortlist_leaves_the_sentences_of_the_nearest_images(log_probs):
    scores, marginals = log_probs[:, :IMAGES], np.zeros(S)
    shortlist = np.array([[0, 2], [1, 0], [2, 1], [3, 0]])
    ranks = rank_sentences(scores, marginals, IMAGE_OF_SENTENCE, shortlist)
    assert ranks.num_candidates.tolist() == [4, 4, 4, 5]
    for i in range(IMAGES):
        listed = [s for s in range(S) if IMAGE_OF_SENTENCE[s] in shortlist[i]]
        best = max(scores[s, i] for s in listed if IMAGE_OF_SENTENCE[s] == i)
        false = [scores[s, i] for s in listed if IMAGE_OF_SENTENCE[s] != i]
        assert ranks.first[i] == 1 + sum(value >= best for value in false)


@pytest.mark.parametrize("block", [2, 100])
def test_nearest_images_are_those_of_a_naive_sort(block):
    features = np.random.default_rng(4).normal(size=(7, 3)).astype(np.float32)
    features[5] = features[2]  # the same image twice: the query itself still comes first
    nearest = nearest_images(features, 4, block=block)
    for i in range(7):
        distances = [(i != j, np.linalg.norm(features[i] - features[j]), j) for j in range(7)]
        assert nearest[i].tolist() == [j for _, _, j in sorted(distances)[:4]]
