"""CIDEr-D: the equations, cached references, pycocoevalcap."""

import random

import numpy as np
import pytest
from naive_cider import naive_cider_d

from fairseq_mm.metrics.cider import CiderD


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
    ours = [cider.score_item(h, i) for i, h in enumerate(hypotheses)]
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


def test_single_document_scores_zero_because_its_idf_is():
    assert CiderD([[["a", "b"]]]).score_item(["a", "b"], 0) == 0.0
