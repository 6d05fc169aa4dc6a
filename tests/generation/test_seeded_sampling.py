"""Draws: their distribution, what limits it, and independence of the batch."""

import math
from argparse import Namespace

import numpy as np
import pytest
import torch
from toy_data import make_dictionary

from fairseq_mm.errors import UserError
from fairseq_mm.generation.seeded_sampling import SeededSampling, forbid_untypical
from fairseq_mm.generation.task import read_typical_p

V = 20


@pytest.fixture
def lprobs():
    torch.manual_seed(3)
    return torch.randn(5, V).mul(2).log_softmax(dim=1)


def search(**options):
    return SeededSampling(make_dictionary(), **options)


def step(strategy, lprobs, items, number=0, scores=None):
    return strategy.step(number, lprobs[:, None].clone(), scores, None, torch.tensor(items))


def words(strategy, lprobs, items):
    return step(strategy, lprobs, items)[1].flatten().tolist()


def draw_of(item, number, *, seed=0, stream=0, place=0, num_steps=4):
    """As documented: 48 bits of numpy's Philox, seeded with seed, item, stream and, of the second
    place of a beam and those after it, the place."""
    key = [seed, item, stream, place] if place else [seed, item, stream]
    bits = np.random.Philox(np.random.SeedSequence(key))
    return [int(x) // 2**16 / 2**48 for x in bits.random_raw(num_steps)][number]


def test_words_come_as_often_as_their_probabilities_say(lprobs):
    count = 20_000
    found = words(search(), lprobs[:1].expand(count, V), list(range(count)))
    frequencies = np.bincount(found, minlength=V) / count
    expected = lprobs[0].exp().numpy()
    assert np.abs(frequencies - expected).max() < 4 * math.sqrt(0.25 / count)


@pytest.mark.parametrize(("topk", "topp"), [(0, 1.0), (3, 1.0), (0, 0.6), (4, 0.9), (20, 1.0)])
def test_the_draw_falls_into_the_word_whose_share_it_is(lprobs, topk, topp):
    items = [0, 7, 3, 2**40, 12]
    found = words(search(topk=topk, topp=topp, seed=5, stream=1), lprobs, items)
    for row, item in enumerate(items):
        probabilities = lprobs[row].exp().tolist()
        ranked = sorted(range(V), key=lambda word: -probabilities[word])[: topk or V]
        kept, mass = [], 0.0
        for word in ranked:
            if mass >= topp:
                break
            kept.append(word)
            mass += probabilities[word]
        threshold, so_far = draw_of(item, 0, seed=5, stream=1) * mass, 0.0
        for word in sorted(kept):
            so_far += probabilities[word]
            if so_far > threshold:
                break
        assert found[row] == word


def test_a_share_of_many_words_is_found():
    num_types = 3000  # more than are looked at first
    lprobs = torch.full((400, num_types), -math.log(num_types))
    found = words(search(topp=0.5), lprobs, list(range(400)))
    assert len(set(found)) > 300
    both = words(search(topp=0.5, topk=7), lprobs, list(range(400)))
    assert len(set(both)) == 7


def test_forbidden_words_are_never_drawn(lprobs):
    lprobs[:, 4:] = -math.inf
    lprobs[:, 1] = -math.inf
    items = list(range(500))
    for options in ({}, {"topk": 10}, {"topp": 0.99}):
        found = words(search(**options), lprobs[:1].expand(500, V), items)
        assert set(found) <= {0, 2, 3}


def test_a_row_draws_the_same_in_every_batch_and_after_others_ended(lprobs):
    items = [4, 9, 2, 30, 11]
    together = search(topk=6, seed=8)
    first = words(together, lprobs, items)
    together.prune_sentences(torch.tensor([1, 4]))
    scores = torch.tensor([[[-1.0]], [[-2.0]]])
    second = step(together, lprobs[[1, 4]], [9, 11], 1, scores)
    for row, index in ((1, 0), (4, 1)):
        alone = search(topk=6, seed=8)
        assert words(alone, lprobs[[row]], [items[row]]) == [first[row]]
        sums, chosen, beams = step(alone, lprobs[[row]], [items[row]], 1, scores[[index]])
        assert chosen.tolist() == [second[1][index].tolist()]
        assert beams.tolist() == [[0]]
        expected = scores[index, 0, 0] + lprobs[row, chosen.item()]
        torch.testing.assert_close(sums.flatten(), expected[None])


def test_seeds_items_streams_and_steps_draw_differently():
    lprobs = torch.full((6, V), -math.log(V))

    def draws(**options):
        return words(search(**options), lprobs, range(6))

    base = draws(seed=1)
    assert len(set(base)) > 2
    assert draws(seed=2) != base != draws(seed=1, stream=1)
    strategy = search(seed=1)
    step(strategy, lprobs, list(range(6)))
    later = step(strategy, lprobs, list(range(6)), 1, torch.zeros(6, 1, 1))[1]
    assert later.flatten().tolist() != base
    assert draws(seed=1) == base


def test_nearly_equal_probabilities_may_change_places():
    lprobs = torch.full((1, V), -10.0)
    lprobs[0, [6, 11]] = torch.tensor([-0.7, -0.7000001])
    swapped = lprobs.clone()
    swapped[0, [6, 11]] = lprobs[0, [11, 6]]
    for item in range(30):
        for options in ({"topk": 3}, {"topp": 0.9}):
            strategy = search(**options)
            assert words(strategy, lprobs, [item]) == words(strategy, swapped, [item])


def test_texts_of_a_beam_are_drawn_independently_and_each_goes_on_by_itself(lprobs):
    strategy = search(seed=5, stream=1)
    items, beam = [9, 4], 3
    rows = lprobs[:2, None].expand(2, beam, V)
    scores, first, beams = strategy.step(0, rows.clone(), None, None, torch.tensor(items))
    assert beams.tolist() == [[0, 1, 2], [0, 1, 2]]
    other = lprobs[[2, 3, 4, 4, 2, 3]].view(2, beam, V)
    sums, second, _ = strategy.step(1, other.clone(), scores[:, :, None], None, None)
    for row, item in enumerate(items):
        for place in range(beam):
            for number, values, found in ((0, rows, first), (1, other, second)):
                probabilities = values[row, place].double().exp()
                threshold = draw_of(item, number, seed=5, stream=1, place=place)
                so_far = probabilities.cumsum(0) / probabilities.sum()
                assert found[row, place] == int((so_far <= threshold).sum())
    expected = rows.gather(2, first[:, :, None]) + other.gather(2, second[:, :, None])
    torch.testing.assert_close(sums, expected[:, :, 0])
    strategy.prune_sentences(torch.tensor([1]))
    later = strategy.step(2, other[1:].clone(), sums[1:, :, None].expand(1, 3, 2), None, None)
    assert later[1].shape == (1, beam)


@pytest.mark.parametrize("options", [{}, {"topk": 3}, {"topp": 0.9}])
def test_the_only_word_that_may_come_is_drawn_however_improbable(options):
    lprobs = torch.full((50, V), -math.inf)
    lprobs[:, 7] = -2000.0  # no float64 holds its exponential
    assert set(words(search(**options), lprobs, range(50))) == {7}


def test_texts_longer_than_the_first_numbers_go_on_in_their_own_stream(lprobs):
    """Numbers are drawn in blocks: 200 steps of a batch of two, and of the second text alone."""
    items = [9, 4]
    strategy, alone = search(seed=5), search(seed=5)
    for number in range(200):
        scores = torch.zeros(2, 1, number) if number else None
        both = step(strategy, lprobs[:2], items, number, scores)[1].flatten().tolist()
        scores = torch.zeros(1, 1, number) if number else None
        assert step(alone, lprobs[1:2], items[1:], number, scores)[1].flatten().tolist() == both[1:]
        probabilities = lprobs[1].double().exp()
        threshold = draw_of(4, number, seed=5, num_steps=200)
        so_far = probabilities.cumsum(0) / probabilities.sum()
        assert both[1] == int((so_far <= threshold).sum())


def naive_typical(lprobs, typical_p):
    """Indices of the locally typical set, a word at a time (Meister et al. 2023, equation 9)."""
    total = sum(math.exp(x) for x in lprobs)
    p = [math.exp(x) / total for x in lprobs]
    entropy = -sum(x * math.log(x) for x in p if x > 0)
    near = sorted(
        (i for i in range(len(p)) if p[i] > 0), key=lambda i: abs(-math.log(p[i]) - entropy)
    )
    kept, mass = set(), 0.0
    for word in near:
        kept.add(word)
        mass += p[word]
        if mass >= typical_p:
            break
    return kept


@pytest.mark.parametrize("typical_p", [0.05, 0.2, 0.5, 0.95, 0.999])
def test_the_typical_set_equals_a_loop_over_words(typical_p):
    torch.manual_seed(5)
    lprobs = torch.randn(50, V).mul(3)
    lprobs[:25] = lprobs[:25].log_softmax(dim=1)
    lprobs[::3, 4:9] = -math.inf
    found = forbid_untypical(lprobs, typical_p)
    sizes = set()
    for row, allowed in zip(lprobs.tolist(), found.gt(-math.inf).tolist()):
        expected = naive_typical(row, typical_p)
        assert {i for i, x in enumerate(allowed) if x} == expected
        sizes.add(len(expected))
    is_allowed = found > -math.inf
    assert torch.equal(found[is_allowed], lprobs[is_allowed])
    assert len(sizes) > 1 or typical_p == 0.05


def test_equally_near_words_are_all_in_the_typical_set():
    lprobs = torch.full((300, 10), -math.log(10))
    assert len(set(words(search(typical_p=0.2), lprobs, list(range(300))))) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"typical_p": 0.9}, "--typical-p must be .* needs --sampling"),
        (
            {"typical_p": 0.0, "sampling": True},
            "--typical-p must be above 0 and at most 1, and needs --sampling",
        ),
        ({"typical_p": 1.5, "sampling": True}, "--typical-p must be above 0 and at most 1"),
    ],
)
def test_bad_typical_p_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        read_typical_p(Namespace(**options), Namespace())
    with pytest.raises(UserError, match=message):
        read_typical_p(
            Namespace(sampling=options.get("sampling", False)),
            Namespace(typical_p=options["typical_p"]),
        )
