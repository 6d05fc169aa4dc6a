"""CIDEr-D: the equations, fixed document frequencies, cached references, pycocoevalcap."""

import math
import random

import numpy as np
import pytest

from fairseq_mm.metrics.cider import CiderD, document_frequencies


def naive_cider_d(hypothesis, references, all_references):
    """CIDEr-D of one item, the vectors written out over every n-gram."""

    def grams(tokens, n):
        return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]

    total = 0.0
    for n in range(1, 5):
        vocabulary = sorted({g for t in [hypothesis, *references] for g in grams(t, n)})
        idf = []
        for gram in vocabulary:
            documents = sum(any(gram in grams(t, n) for t in item) for item in all_references)
            idf.append(math.log(len(all_references)) - math.log(max(1, documents)))
        for reference in references:
            h = [grams(hypothesis, n).count(g) * w for g, w in zip(vocabulary, idf)]
            r = [grams(reference, n).count(g) * w for g, w in zip(vocabulary, idf)]
            norms = math.sqrt(sum(x * x for x in h)) * math.sqrt(sum(x * x for x in r))
            if norms == 0:
                continue
            delta = len(grams(hypothesis, 2)) - len(grams(reference, 2))
            clipped = sum(min(x, y) * y for x, y in zip(h, r))
            total += clipped / norms * math.exp(-(delta**2) / (2 * 6.0**2))
    return 10 * total / (4 * len(references))


@pytest.fixture
def corpus():
    generator = random.Random(3)

    def sentence(shortest=1):
        return [generator.choice("abcdefg") for _ in range(generator.randint(shortest, 11))]

    hypotheses = [sentence(0) for _ in range(17)]
    references = [[sentence() for _ in range(generator.randint(1, 4))] for _ in range(17)]
    return hypotheses, references


def test_equals_the_equations_written_as_loops(corpus):
    hypotheses, references = corpus
    cider = CiderD(references)
    ours = [cider.score(h, r) for h, r in zip(hypotheses, references)]
    theirs = [naive_cider_d(h, r, references) for h, r in zip(hypotheses, references)]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    assert max(ours) > 0.1


def test_equals_pycocoevalcap(corpus):
    cider = pytest.importorskip("pycocoevalcap.cider.cider")
    hypotheses, references = corpus
    mean, per_item = cider.Cider().compute_score(
        {i: [" ".join(r) for r in item] for i, item in enumerate(references)},
        {i: [" ".join(h)] for i, h in enumerate(hypotheses)},
    )
    scorer = CiderD(references)
    ours = [scorer.score_item(h, i) for i, h in enumerate(hypotheses)]
    np.testing.assert_allclose(ours, per_item, rtol=0, atol=1e-9)
    assert np.mean(ours) == pytest.approx(mean, abs=1e-9)


def test_cached_references_give_the_same_score_every_time(corpus):
    hypotheses, references = corpus
    scorer = CiderD(references)
    first = [scorer.score_item(h, i) for i, h in enumerate(hypotheses)]
    second = [scorer.score_item(h, i) for i, h in enumerate(hypotheses)]
    assert first == second == [scorer.score(h, r) for h, r in zip(hypotheses, references)]


def test_given_document_frequencies_replace_those_of_the_references(corpus):
    hypotheses, references = corpus
    frequencies = document_frequencies(references)
    part = CiderD(references[:3], frequencies=frequencies, num_documents=len(references))
    whole = CiderD(references)
    for i in range(3):
        assert part.score_item(hypotheses[i], i) == whole.score_item(hypotheses[i], i)


def test_document_frequency_counts_items_not_occurrences():
    frequencies = document_frequencies([[["a", "a"], ["a"]], [["a", "b"]]])
    assert frequencies[("a",)] == 2
    assert frequencies[("a", "a")] == 1


def test_reference_itself_scores_ten_and_a_stranger_zero():
    references = [[["a", "b", "c", "d", "e"]], [["f", "g", "h", "i", "j"]]]
    scorer = CiderD(references)
    assert scorer.score_item(references[0][0], 0) == pytest.approx(10.0)
    assert scorer.score_item(references[1][0], 0) == 0.0


def test_single_document_scores_zero_because_its_idf_is():
    assert CiderD([[["a", "b"]]]).score_item(["a", "b"], 0) == 0.0


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="must be given together"):
        CiderD([[["a"]]], num_documents=3)
    with pytest.raises(ValueError, match="from 1 item or more, not 0"):
        CiderD([])
    with pytest.raises(ValueError, match="must have one reference or more, but is empty"):
        CiderD([[["a"]]]).score(["a"], [])
