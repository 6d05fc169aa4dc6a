"""Expected utilities of samples against loops over pairs."""

import math

import pytest

from fairseq_mm.metrics.cider import CiderD
from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize
from fairseq_mm.metrics.rewards import expected_utilities
from fairseq_mm.metrics.rouge import rouge_l

TEXTS = [
    "A dog runs on the green grass.",
    "a dog plays on the grass .",
    "Two men sit at a table.",
    "a dog runs on the green grass .",  # the first, but for the form
    "A black dog runs.",
]


def mean_over_others(score):
    tokens = [ptb_tokenize(text) for text in TEXTS]
    return [
        sum(score(own, j, tokens) for j in range(len(tokens)) if j != i) / (len(tokens) - 1)
        for i, own in enumerate(tokens)
    ]


def smoothed_bleu(own, other):
    """Lin and Och 2004: 1 is added to matches and n-grams of order 2 to 4."""
    logs = 0.0
    for n in range(1, 5):
        grams = [tuple(own[i : i + n]) for i in range(len(own) - n + 1)]
        others = [tuple(other[i : i + n]) for i in range(len(other) - n + 1)]
        matches = sum(min(grams.count(g), others.count(g)) for g in set(grams))
        added = 0 if n == 1 else 1
        if n == 1 and not matches:
            return 0.0
        logs += math.log((matches + added) / (len(grams) + added))
    return math.exp(logs / 4) * min(1.0, math.exp(1 - len(other) / len(own)))


def test_bleu_equals_a_loop():
    expected = mean_over_others(lambda own, j, tokens: smoothed_bleu(own, tokens[j]))
    assert expected_utilities(TEXTS, "bleu") == pytest.approx(expected)


def test_rouge_l_equals_a_loop():
    expected = mean_over_others(lambda own, j, tokens: rouge_l(own, [tokens[j]]))
    assert expected_utilities(TEXTS, "rouge_l") == pytest.approx(expected)


def test_cider_takes_each_sample_as_a_document():
    scorer = CiderD([[ptb_tokenize(text)] for text in TEXTS])
    expected = mean_over_others(lambda own, j, _: scorer.score_item(own, j))
    assert expected_utilities(TEXTS, "cider") == pytest.approx(expected)


def test_meteor_equals_a_loop():
    pytest.importorskip("pycocoevalcap")
    from fairseq_mm.metrics.meteor import meteor

    def score(own, j, tokens):
        return meteor([" ".join(own)], [[" ".join(tokens[j])]])[0]

    assert expected_utilities(TEXTS, "meteor") == pytest.approx(mean_over_others(score))
