"""Rewards of samples against the metrics of which they are the weighted sum."""

import pytest

from fairseq_mm.metrics.bleu import smoothed_bleu
from fairseq_mm.metrics.cider import (
    CiderD,
    InverseDocumentFrequencies,
    count_documents,
    ngram_counts,
)
from fairseq_mm.metrics.rewards import Job, Rewards, read_rewards
from fairseq_mm.metrics.rouge import rouge_l

ITEMS = [[[4, 5, 6, 7, 2], [4, 5, 2]], [[8, 5, 6, 2]], [[9, 9, 2]]]
SAMPLES = [[4, 5, 6, 2], [4, 5, 6], [8, 9]]
COUNTS = count_documents([ngram_counts(words) for words in texts] for texts in ITEMS)


def test_a_reward_is_the_weighted_sum_of_its_metrics():
    weights = InverseDocumentFrequencies(COUNTS, len(ITEMS))
    own = CiderD(ITEMS)
    expected = [
        own.score_item(sample, 0)
        + 0.5 * smoothed_bleu(sample, ITEMS[0])
        + 3 * rouge_l(sample, ITEMS[0])
        for sample in SAMPLES
    ]
    rewards = Rewards(read_rewards("cider, bleu=0.5,rouge_l=3"), weights)
    found = rewards.score(Job(SAMPLES, ITEMS[0]))
    assert found == pytest.approx(expected)
    assert min(found[:2]) > 1


def test_an_item_counts_an_ngram_once():
    assert COUNTS[(5,)] == 2
    assert COUNTS[(9,)] == 1
