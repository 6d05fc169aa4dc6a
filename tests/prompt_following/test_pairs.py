"""Generated prompts and stories depend on each other exactly as their module says."""

import math
import random
from collections import Counter

import pytest
from known_facts.pairs import SLOT, write_pair, write_splits
from known_facts.reading import (
    perplexities,
    rank_readers,
    read_mentions,
    read_prompt,
    split_sentences,
)
from known_facts.templates import FACTS, FILLERS
from known_facts.words import CLASSES, KINDS, VALUE_BY_TRACE, VALUES


@pytest.fixture(scope="module")
def pairs():
    return write_splits({"valid": 300}, seed=3)["valid"]


def test_each_fact_is_taken_up_in_the_beginning_and_in_the_end(pairs):
    for pair in pairs:
        assert read_prompt(pair.prompt) == pair.facts
        assert split_sentences(pair.story) == pair.sentences
        assert 60 <= len(pair.story.split()) <= 150
        mentions = read_mentions(pair.story)
        assert [mention.place for mention in mentions] == [
            place for place, kind in enumerate(pair.kinds) if kind
        ]
        assert all(pair.facts[mention.kind] == mention.value for mention in mentions)
        first, last = mentions[:5], mentions[5:]
        assert {x.kind for x in first} == {x.kind for x in last} == set(KINDS)
        # the two fillers of the middle stand between
        assert last[0].place - first[-1].place == 3
        for kind in KINDS:
            texts = [pair.sentences[x.place] for x in mentions if x.kind == kind]
            frames = [set(text.split()) & set(VALUE_BY_TRACE) for text in texts]
            assert len(texts) == 2
            assert frames[0] != frames[1]


def naive_log_prob(pair):
    """Reads the choices of a story back from its text."""
    probability = 1.0
    mentioned = Counter()
    names = set()
    place_of = [place for place, kind in enumerate(pair.kinds) if kind]
    fillers = (place_of[4] - 4, len(pair.kinds) - place_of[5] - 5)
    for count in fillers:
        orders = math.factorial(5 + count - 1) // (
            math.factorial(count) * math.factorial(4)
        )  # of fillers and facts, without the fixed fact
        probability /= 3 * orders * math.factorial(5)
    for sentence, kind in zip(pair.sentences, pair.kinds):
        templates = FACTS[kind] if kind else FILLERS
        for template in templates:
            words, slots = sentence.split(), template.split()
            if len(words) == len(slots) and all(
                slot == word or SLOT.fullmatch(slot) for slot, word in zip(slots, words)
            ):
                break
        probability /= len(templates) - mentioned[kind]
        for slot, word in zip(slots, words):
            if slot == "{trace}":
                probability /= 4 - mentioned[kind]
            elif slot in ("{name}", "{friend}"):
                if slot not in names:
                    probability /= 48
                names.add(slot)
            elif SLOT.fullmatch(slot):
                assert word in CLASSES[slot[1:-1]]
                probability /= len(CLASSES[slot[1:-1]])
        if kind:
            mentioned[kind] += 1
    return math.log(probability)


def test_log_probability_is_that_of_the_text(pairs):
    for pair in pairs[:60]:
        assert pair.log_prob == pytest.approx(naive_log_prob(pair), abs=1e-9)
    tokens = sum(len(pair.story.split()) + 1 for pair in pairs)
    nats = -sum(pair.log_prob for pair in pairs)
    lowest = perplexities(pairs, 24**3 * 20 * 12)
    assert math.log(lowest["with_prompt"]) * tokens == pytest.approx(nats)
    difference = math.log(lowest["without_prompt"] / lowest["with_prompt"]) * tokens
    assert difference == pytest.approx(len(pairs) * math.log(24**3 * 20 * 12))


def test_fillers_names_and_order_do_not_depend_on_the_facts():
    """With the same random numbers, another list of facts changes the traces and nothing else."""
    for seed in range(20):
        pairs = []
        for place in (0, 5):
            facts = {kind: list(VALUES[kind])[place] for kind in KINDS}
            pairs.append(write_pair(facts, random.Random(seed)))
        one, other = pairs
        assert one.kinds == other.kinds
        assert one.log_prob == other.log_prob
        for kind, sentences in zip(one.kinds, zip(one.sentences, other.sentences)):
            first, second = (sentence.split() for sentence in sentences)
            assert sum(x != y for x, y in zip(first, second)) == bool(kind)
            assert len(first) == len(second)


def test_oracle_ranks_all_prompts_and_fillers_none(pairs):
    readers = rank_readers(pairs)
    assert readers["oracle"].value == 1
    low, high = readers["fillers"].interval
    assert low < 0.1 < high
    assert high - low < 0.08
