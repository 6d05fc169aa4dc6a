"""Generates pairs of a prompt and a story, with the exact probability of the story.

A prompt states five facts: one value of each kind. Its story has three parts:

    beginning   one sentence for each fact in any order, and 0 to 2 fillers before the last of them
    middle      2 fillers
    end         one sentence for each fact in any order, and 0 to 2 fillers after the first of them

The sentence of a fact is a random template of its kind with a random trace of its value; its second
sentence has another template and another trace. Fillers, the names of the protagonist and of a
friend, and the order of the sentences do not depend on the prompt. All choices are uniform, so the
probability of a story given its prompt is the product of 1 / options over its choices. Since no two
lists of choices give the same story, this probability is exact.
"""

import math
import random
import re
from collections.abc import Sequence
from typing import NamedTuple, Optional

from known_facts.templates import ASIDES, FACTS, FILLERS, PROMPTS
from known_facts.words import CLASSES, KINDS, VALUES

MAX_FILLERS = 2  # in the beginning, and in the end
MIDDLE_FILLERS = 2
SLOT = re.compile(r"\{(\w+)\}")
# slots whose word stays the same in a story
_SAME = ("name", "friend")

Facts = dict[str, str]


def count_values(limit: Optional[int] = None) -> dict[str, int]:
    """Return the number of values of each kind if prompts name only the first ``limit``.

    None is no limit.
    """
    return {kind: min(len(VALUES[kind]), limit or len(VALUES[kind])) for kind in KINDS}


class Pair(NamedTuple):
    """Prompt and story.

    Attributes:
        facts: Kind -> value that the prompt names.
        prompt: Words of the prompt, separated by spaces.
        sentences: Sentences of the story.
        kinds: Kind of the fact that each sentence takes up; "" for a filler.
        log_prob: Natural logarithm of P(story | prompt).
    """

    facts: Facts
    prompt: str
    sentences: list[str]
    kinds: list[str]
    log_prob: float

    @property
    def story(self) -> str:
        return " ".join(self.sentences)


class StoryWriter:
    """Writer of one story, which adds up the log-probability of its choices.

    Args:
        facts: Kind -> value.
        rng: Source of random numbers.
    """

    def __init__(self, facts: Facts, rng: random.Random) -> None:
        self._facts, self._rng = facts, rng
        self._words: dict[str, str] = {}
        self._templates: dict[str, list[str]] = {kind: list(FACTS[kind]) for kind in KINDS}
        self._traces = {kind: list(VALUES[kind][facts[kind]]) for kind in KINDS}
        self.log_prob = 0.0

    def write(self) -> tuple[list[str], list[str]]:
        """Return the sentences of the story, and the kind of each ("" for a filler)."""
        # The last sentence of the beginning and the first of the end are of facts. Otherwise a
        # filler between two parts could belong to either.
        beginning = self._order_part()
        end = self._order_part()[::-1]
        kinds = [*beginning, *[""] * MIDDLE_FILLERS, *end]
        return [self._write_sentence(kind) for kind in kinds], kinds

    def _order_part(self) -> list[str]:
        """Return the kinds of a part, whose last sentence is of a fact."""
        fillers = self._choose(range(MAX_FILLERS + 1))
        facts = list(KINDS)
        self._rng.shuffle(facts)
        before = len(KINDS) - 1 + fillers  # places before the last sentence
        places = set(self._rng.sample(range(before), fillers))
        self.log_prob -= math.log(math.factorial(len(KINDS)) * math.comb(before, fillers))
        return ["" if place in places else facts.pop() for place in range(before + 1)]

    def _write_sentence(self, kind: str) -> str:
        """Write a sentence for the fact of ``kind``, or a filler if ``kind`` is empty."""
        if not kind:
            return SLOT.sub(self._fill, self._choose(FILLERS))
        template, trace = self._choose(self._templates[kind]), self._choose(self._traces[kind])
        self._templates[kind].remove(template)  # the second sentence has other words
        self._traces[kind].remove(trace)
        return SLOT.sub(self._fill, template.replace("{trace}", trace))

    def _fill(self, match: re.Match[str]) -> str:
        slot = match[1]
        if slot in self._words:
            return self._words[slot]
        word = self._choose(CLASSES[slot])
        if slot in _SAME:
            self._words[slot] = word
        return word

    def _choose(self, options: Sequence) -> object:
        self.log_prob -= math.log(len(options))
        return self._rng.choice(options)


def write_pair(facts: Facts, rng: random.Random) -> Pair:
    """Write a prompt that states ``facts``, and its story."""
    template = rng.choice(PROMPTS)
    prompt = template.format(**facts, aside=rng.choice(ASIDES))
    writer = StoryWriter(facts, rng)
    sentences, kinds = writer.write()
    return Pair(facts, prompt, sentences, kinds, writer.log_prob)


def write_splits(
    sizes: dict[str, int], seed: int, limit: Optional[int] = None
) -> dict[str, list[Pair]]:
    """Generate the pairs of all splits; no two pairs have the same five facts.

    Args:
        sizes: Split -> number of pairs. A split does not depend on the splits after it.
        seed: Seed of all random numbers.
        limit: Number of values of each kind that prompts name, the first ones; None for all.
    """
    values = {kind: list(VALUES[kind])[:number] for kind, number in count_values(limit).items()}
    used: set[tuple[str, ...]] = set()
    splits = {}
    for split, size in sizes.items():
        rng = random.Random(f"{seed} {split}")
        pairs: list[Pair] = []
        while len(pairs) < size:
            facts = {kind: rng.choice(values[kind]) for kind in KINDS}
            if tuple(facts.values()) not in used:
                used.add(tuple(facts.values()))
                pairs.append(write_pair(facts, rng))
        splits[split] = pairs
    return splits
