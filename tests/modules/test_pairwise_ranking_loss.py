"""The ranking loss equals equation 6 of Kiros et al. 2014, written as loops."""

import pytest
import torch
import torch.nn.functional as F
from numerics import assert_close

from fairseq_mm.modules.pairwise_ranking import pairwise_ranking_loss

B, C, K = 4, 6, 5
MARGIN = 0.3


def by_loops(images, sentences, is_negative, all_images, all_sentences, negatives):
    total, collapsed = 0.0, 0.0
    for i in range(len(images)):
        true = float(images[i] @ sentences[i])
        for query, candidates in ((images[i], all_sentences), (sentences[i], all_images)):
            costs = [
                max(0.0, MARGIN - true + float(query @ candidates[k]))
                for k in range(len(candidates))
                if is_negative[i, k]
            ]
            if not costs:
                continue
            total += max(costs) if negatives == "max" else sum(costs)
            collapsed += MARGIN * (1 if negatives == "max" else len(costs))
    return total, collapsed


@pytest.fixture
def pairs():
    torch.manual_seed(3)
    all_images, all_sentences = (F.normalize(torch.randn(C, K), dim=-1) for _ in range(2))
    items = torch.tensor([7, 3, 7, 1, 3, 4])
    is_negative = items[1 : 1 + B, None] != items
    return all_images[1 : 1 + B], all_sentences[1 : 1 + B], is_negative, all_images, all_sentences


@pytest.mark.parametrize("negatives", ["sum", "max"])
def test_equals_the_equation_written_as_loops(pairs, negatives):
    images, sentences, is_negative, all_images, all_sentences = pairs
    found = pairwise_ranking_loss(
        images,
        sentences,
        is_negative,
        margin=MARGIN,
        negatives=negatives,
        all_images=all_images,
        all_sentences=all_sentences,
    )
    expected = by_loops(images, sentences, is_negative, all_images, all_sentences, negatives)
    assert float(found.loss) == pytest.approx(expected[0], rel=1e-5)
    assert_close(float(found.collapsed), expected[1])


@pytest.mark.parametrize("negatives", ["sum", "max"])
def test_equal_embeddings_give_the_collapse_value(negatives):
    one = F.normalize(torch.ones(B, K), dim=-1)
    found = pairwise_ranking_loss(
        one, one, ~torch.eye(B, dtype=torch.bool), margin=0.2, negatives=negatives
    )
    # of each pair: two directions, each with 3 terms of 0.2 or 1
    expected = B * 2 * {"sum": 3, "max": 1}[negatives] * 0.2
    assert_close(float(found.loss), expected)
    assert_close(float(found.collapsed), expected)


def test_pairs_without_negatives_have_no_loss():
    x = torch.randn(2, K, requires_grad=True)
    for negatives in ("sum", "max"):
        for is_negative in (torch.zeros(2, 2, dtype=torch.bool), torch.zeros(2, 2).bool()):
            found = pairwise_ranking_loss(x, x, is_negative, margin=0.2, negatives=negatives)
            assert float(found.loss) == 0
            assert float(found.collapsed) == 0
            found.loss.backward()


def test_loss_of_half_precision_is_computed_in_float32(pairs):
    images, sentences, is_negative, *_ = pairs
    half = pairwise_ranking_loss(images.half(), sentences.half(), is_negative[:, 1:5], margin=0.2)
    assert half.loss.dtype == torch.float32
