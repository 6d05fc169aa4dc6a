"""ROUGE-L: the subsequence, the best precision and recall over references, pycocoevalcap."""

import random

import numpy as np
import pytest

from fairseq_mm.metrics.rouge import longest_common_subsequence, rouge_l


def naive_lcs(first, second):
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, x in enumerate(first):
        for j, y in enumerate(second):
            if x == y:
                table[i + 1][j + 1] = table[i][j] + 1
            else:
                table[i + 1][j + 1] = max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@pytest.mark.parametrize("seed", range(5))
def test_bit_parallel_subsequence_equals_the_table(seed):
    generator = random.Random(seed)
    for length in (0, 1, 7, 63, 64, 65, 130):
        first = [generator.choice("abc") for _ in range(length)]
        second = [generator.choice("abcd") for _ in range(generator.randint(0, 90))]
        assert longest_common_subsequence(first, second) == naive_lcs(first, second)


def test_by_hand():
    # precision: best 2/3 (first reference), recall: best 2/2 (second)
    score = rouge_l(["a", "b", "c"], [["a", "x", "b", "y"], ["a", "b"]])
    p, r = 2 / 3, 1.0
    assert score == pytest.approx((1 + 1.44) * p * r / (r + 1.44 * p), abs=1e-12)


def test_bounds():
    assert rouge_l(["a", "b"], [["a", "b"]]) == pytest.approx(1.0)
    assert rouge_l(["a"], [["b"]]) == 0.0
    assert rouge_l([], [["b"]]) == 0.0
    assert rouge_l(["b"], [[]]) == 0.0


def test_no_reference_is_refused():
    with pytest.raises(ValueError, match="must have one reference or more, but is empty"):
        rouge_l(["a"], [])


def test_equals_pycocoevalcap():
    rouge = pytest.importorskip("pycocoevalcap.rouge.rouge")
    generator = random.Random(7)

    def sentence():
        return [generator.choice("abcdef") for _ in range(generator.randint(1, 13))]

    hypotheses = [sentence() for _ in range(19)]
    references = [[sentence() for _ in range(generator.randint(1, 4))] for _ in range(19)]
    _, per_item = rouge.Rouge().compute_score(
        {i: [" ".join(r) for r in item] for i, item in enumerate(references)},
        {i: [" ".join(h)] for i, h in enumerate(hypotheses)},
    )
    ours = [rouge_l(h, r) for h, r in zip(hypotheses, references)]
    np.testing.assert_allclose(ours, per_item, rtol=0, atol=1e-9)
