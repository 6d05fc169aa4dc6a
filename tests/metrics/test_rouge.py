"""ROUGE: the subsequence, both protocols, pycocoevalcap, the figures of published summaries."""

import random

import numpy as np
import pytest

from fairseq_mm.metrics.rouge import longest_common_subsequence, rouge_l, rouge_l_f1, rouge_n_f1


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


def naive_f1(common, hypothesis, reference):
    if common == 0:
        return 0.0
    precision, recall = common / hypothesis, common / reference
    return 2 * precision * recall / (precision + recall)


def naive_rouge_n(hypothesis, reference, n):
    left = [reference[i : i + n] for i in range(len(reference) - n + 1)]
    available, common = list(left), 0
    ours = [hypothesis[i : i + n] for i in range(len(hypothesis) - n + 1)]
    for ngram in ours:
        if ngram in available:  # each n-gram of the reference counts once
            available.remove(ngram)
            common += 1
    return naive_f1(common, len(ours), len(left))


def test_f1_of_summaries_equals_naive_counts():
    generator = random.Random(5)
    for _ in range(60):
        first, second = (
            [generator.choice("abcd") for _ in range(generator.randint(0, 19))] for _ in range(2)
        )
        for n in (1, 2, 3):
            expected = naive_rouge_n(first, second, n)
            assert rouge_n_f1(first, second, n) == pytest.approx(expected, abs=1e-12)
        expected = naive_f1(naive_lcs(first, second), len(first), len(second))
        assert rouge_l_f1(first, second) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "figures"),
    [("Bart_text_only", (64.05, 46.39, 58.86)), ("Bart_dot_product", (66.12, 49.25, 61.25))],
)
def test_published_summaries_get_their_published_figures(shared_data, name, figures):
    folder = shared_data("how2") / "outputs"
    ours, references = (
        [line.split() for line in (folder / file).read_text().splitlines()]
        for file in (f"{name}.txt", "test.tgt")
    )
    assert len(ours) == len(references) == 2127
    means = [
        np.mean([rouge(h, r) for h, r in zip(ours, references)])
        for rouge in (
            lambda h, r: rouge_n_f1(h, r, 1),
            lambda h, r: rouge_n_f1(h, r, 2),
            rouge_l_f1,
        )
    ]
    assert tuple(round(100 * float(mean), 2) for mean in means) == figures
