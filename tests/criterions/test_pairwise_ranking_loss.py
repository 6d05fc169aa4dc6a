"""The ranking loss and InfoNCE equal their equations, written as loops."""

import math

import pytest
import torch
import torch.nn.functional as F
from numerics import assert_close

from fairseq_mm.criterions.pairwise_ranking import pairwise_loss

B, C, K = 4, 6, 5
MARGIN = 0.3


def by_loops(images, sentences, is_negative, all_images, all_sentences, negatives):
    total = 0.0
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
    return total


@pytest.fixture
def pairs():
    torch.manual_seed(3)
    all_images, all_sentences = (F.normalize(torch.randn(C, K), dim=-1) for _ in range(2))
    items = torch.tensor([7, 3, 7, 1, 3, 4])
    is_negative = items[1 : 1 + B, None] != items
    return all_images[1 : 1 + B], all_sentences[1 : 1 + B], is_negative, all_images, all_sentences


@pytest.mark.parametrize("negatives", ["sum", "max"])
def test_equals_the_equation_written_as_loops(pairs, negatives):
    found = pairwise_loss(*pairs, margin=MARGIN, is_hardest=negatives == "max")
    assert float(found) == pytest.approx(by_loops(*pairs, negatives), rel=1e-5)


@pytest.mark.parametrize("negatives", ["sum", "max"])
def test_equal_embeddings_cost_the_margins(negatives):
    one = F.normalize(torch.ones(B, K), dim=-1)
    is_negative = ~torch.eye(B, dtype=torch.bool)
    found = pairwise_loss(
        one, one, is_negative, one, one, margin=0.2, is_hardest=negatives == "max"
    )
    # of each pair: two directions, each with 3 terms of 0.2 or 1
    expected = B * 2 * {"sum": 3, "max": 1}[negatives] * 0.2
    assert_close(float(found), expected)


TEMPERATURE = 0.07


def info_nce_by_loops(images, sentences, is_negative, all_images, all_sentences):
    """The loss, and by its derivative the gradients of the temperature and of all embeddings."""
    loss, slope = 0.0, 0.0
    gradients = [torch.zeros_like(x) for x in (images, sentences, all_images, all_sentences)]
    for i in range(len(images)):
        for query, match, candidates, places in (
            (images[i], sentences[i], all_sentences, (0, 1, 3)),
            (sentences[i], images[i], all_images, (1, 0, 2)),
        ):
            rivals = [k for k in range(len(candidates)) if is_negative[i, k]]
            true = float(query @ match)
            scores = [true, *(float(query @ candidates[k]) for k in rivals)]
            exponentials = [math.exp(score / TEMPERATURE) for score in scores]
            shares = [x / sum(exponentials) for x in exponentials]
            loss -= math.log(shares[0])
            mean = sum(share * score for share, score in zip(shares, scores))
            slope += (true - mean) / TEMPERATURE**2
            # of the cross-entropy by each score: its share, less one for the pair itself
            of_query, of_match, of_candidates = (gradients[place] for place in places)
            of_query[i] += (shares[0] - 1) * match / TEMPERATURE
            of_match[i] += (shares[0] - 1) * query / TEMPERATURE
            for k, share in zip(rivals, shares[1:]):
                of_query[i] += share * candidates[k] / TEMPERATURE
                of_candidates[k] += share * query / TEMPERATURE
    return loss, slope, gradients


def test_info_nce_and_its_gradients_equal_the_equation_written_as_loops(pairs):
    images, sentences, is_negative, all_images, all_sentences = (x.clone() for x in pairs)
    embeddings = [images, sentences, all_images, all_sentences]
    loss, slope, gradients = info_nce_by_loops(
        images, sentences, is_negative, all_images, all_sentences
    )
    temperature = torch.tensor(TEMPERATURE, requires_grad=True)
    for x in embeddings:
        x.requires_grad_()
    arguments = images, sentences, is_negative, all_images, all_sentences
    found = pairwise_loss(*arguments, temperature=temperature)
    found.backward()
    assert float(found) == pytest.approx(loss, rel=1e-5)
    assert float(temperature.grad) == pytest.approx(slope, rel=1e-4)
    for x, gradient in zip(embeddings, gradients):
        assert_close(x.grad, gradient)
    # a number is the same temperature
    number = pairwise_loss(*arguments, temperature=TEMPERATURE)
    assert_close(number, found)
    assert number.dtype == torch.float32


def test_info_nce_of_equal_embeddings():
    one = F.normalize(torch.ones(B, K), dim=-1)
    is_negative = ~torch.eye(B, dtype=torch.bool)
    is_negative[0, 1] = False
    found = pairwise_loss(one, one, is_negative, one, one, temperature=0.1)
    # of the first pair three candidates with itself, of the others four, in two directions
    expected = 2 * (math.log(3) + 3 * math.log(4))
    assert_close(float(found), expected)
