"""BLEU's sums: the paper's equations, additivity, ties of the reference length."""

import math
import random
from collections import Counter

import numpy as np
import pytest

from fairseq_mm.metrics.bleu import bleu_from_sums, bleu_sums


def naive_bleu(hypotheses, references):
    """Equations 8 and 9 of the m-RNN paper, written as loops over the corpus."""
    matches, totals, r, c = [0] * 4, [0] * 4, 0, 0
    for hypothesis, items in zip(hypotheses, references):
        c += len(hypothesis)
        closest = None
        for reference in sorted(items, key=len):
            distance = abs(len(reference) - len(hypothesis))
            if closest is None or distance < closest[0]:
                closest = (distance, len(reference))
        r += closest[1]
        for n in range(1, 5):
            grams = [tuple(hypothesis[i : i + n]) for i in range(len(hypothesis) - n + 1)]
            totals[n - 1] += len(grams)
            for gram, count in Counter(grams).items():
                most = 0
                for reference in items:
                    found = [
                        tuple(reference[i : i + n]) for i in range(len(reference) - n + 1)
                    ].count(gram)
                    most = max(most, found)
                matches[n - 1] += min(count, most)
    penalty = min(1.0, math.exp(1 - r / c))
    return [
        penalty * math.exp(sum(math.log(matches[i] / totals[i]) for i in range(order)) / order)
        for order in range(1, 5)
    ]


def random_corpus(seed, items=23):
    generator = random.Random(seed)

    def sentence(shortest):
        return [generator.choice("abcd") for _ in range(generator.randint(shortest, 12))]

    hypotheses = [sentence(5) for _ in range(items)]
    references = [[sentence(1) for _ in range(generator.randint(1, 4))] for _ in range(items)]
    return hypotheses, references


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equals_the_equations_written_as_loops(seed):
    hypotheses, references = random_corpus(seed)
    sums = sum(bleu_sums(h, r) for h, r in zip(hypotheses, references))
    np.testing.assert_allclose(bleu_from_sums(sums), naive_bleu(hypotheses, references), rtol=1e-9)


def test_shorter_reference_wins_a_tie_in_either_order():
    for references in (["a a", "a a a a"], ["a a a a", "a a"]):
        assert bleu_sums(["a"] * 3, [text.split() for text in references])[-1] == 2


def test_empty_hypothesis_counts_its_reference_length_and_scores_zero_alone():
    sums = bleu_sums([], [["a", "b"]])
    assert sums.tolist() == [0] * 9 + [2]
    assert bleu_from_sums(sums) == [0.0] * 4


def test_equals_pycocoevalcap_for_corpus_and_items():
    bleu = pytest.importorskip("pycocoevalcap.bleu.bleu")
    hypotheses, references = random_corpus(5)
    theirs, per_item = bleu.Bleu(4).compute_score(
        {i: [" ".join(r) for r in item] for i, item in enumerate(references)},
        {i: [" ".join(h)] for i, h in enumerate(hypotheses)},
        verbose=0,
    )
    sums = [bleu_sums(h, r) for h, r in zip(hypotheses, references)]
    np.testing.assert_allclose(bleu_from_sums(sum(sums)), theirs, rtol=0, atol=1e-9)
    ours = np.array([bleu_from_sums(s) for s in sums])
    np.testing.assert_allclose(ours, np.array(per_item).T, rtol=0, atol=1e-9)
