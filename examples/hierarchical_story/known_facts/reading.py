"""Reads the facts of prompts and stories back, and computes what a reader can reach.

The reader knows the templates and the traces. It takes a sentence for one of a fact only if the
sentence has a fact's template, so decoys do not mislead it.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np

from fairseq_mm.metrics import condition_ranking
from fairseq_mm.metrics.condition_ranking import Figure
from known_facts.pairs import SLOT, Facts, Pair
from known_facts.templates import FACTS
from known_facts.words import KIND_BY_VALUE, KINDS, VALUE_BY_TRACE


def _pattern(template: str) -> re.Pattern[str]:
    parts = (
        ("(?P<trace>[^ ]+)" if part == "trace" else "[^ ]+") if number % 2 else re.escape(part)
        for number, part in enumerate(SLOT.split(template))
    )
    return re.compile("".join(parts))


_PATTERNS = {kind: [_pattern(template) for template in FACTS[kind]] for kind in KINDS}


class Mention(NamedTuple):
    """Sentence that takes up a fact.

    Attributes:
        kind: Kind of the fact by the template.
        value: Value of the word in the place of a trace, perhaps of another kind; None if the word
            is no trace.
        place: Index of the sentence in the story.
    """

    kind: str
    value: Optional[str]
    place: int


def read_prompt(prompt: str) -> Facts:
    """Return the facts that a prompt names: kind -> value, in the order of ``KINDS``."""
    found = {KIND_BY_VALUE[word]: word for word in prompt.split() if word in KIND_BY_VALUE}
    return {kind: found[kind] for kind in KINDS if kind in found}


def split_sentences(story: str) -> list[str]:
    """Split a story after each full stop; the last sentence may be unfinished."""
    return [sentence.strip() for sentence in re.findall(r"[^.]+\.?", story) if sentence.strip()]


def read_mentions(story: str) -> list[Mention]:
    """Return the sentences of a story that take up a fact, in their order."""
    mentions = []
    for place, sentence in enumerate(split_sentences(story)):
        for kind in KINDS:
            for pattern in _PATTERNS[kind]:
                match = pattern.fullmatch(sentence)
                if match:
                    _, value = VALUE_BY_TRACE.get(match["trace"], (kind, None))
                    mentions.append(Mention(kind, value, place))
    return mentions


# value -> its column in a matrix of facts
_COLUMNS = {value: column for column, value in enumerate(KIND_BY_VALUE)}


def _count_values(values: Sequence[Sequence[str]]) -> np.ndarray:
    """Count the values of each of N lists: [N, all values]."""
    counts = np.zeros((len(values), len(_COLUMNS)))
    for row, of_row in enumerate(values):
        for value in of_row:
            counts[row, _COLUMNS[value]] += 1
    return counts


def _read_words(sentences: Sequence[str]) -> list[str]:
    """Return the value of each trace in ``sentences``, whatever their templates are."""
    words = " ".join(sentences).split()
    return [VALUE_BY_TRACE[word][1] for word in words if word in VALUE_BY_TRACE]


def rank(found: Sequence[Sequence[str]], prompts: Sequence[str], *, draws: int = 20) -> Figure:
    """Rank each story's prompt among 10 by the number of its values that a reader found.

    Args:
        found: Values that the reader found in each story, once per occurrence.
        prompts: Prompt of each story, all different.
        draws: Number of samples of 9 other prompts, which are the samples of ``fairseq-mm rank``.
    """
    named = _count_values([list(read_prompt(prompt).values()) for prompt in prompts])
    columns = condition_ranking.condition_columns(prompts)
    distractors = condition_ranking.draw_distractors(
        columns.true, len(columns.texts), draws=draws, seed=1
    )
    scores = _count_values(found) @ named.T
    return condition_ranking.rank_prompts(scores, columns.true, distractors).accuracy


def rank_readers(pairs: Sequence[Pair]) -> dict[str, Figure]:
    """Return the prompt ranking accuracy of readers that know the grammar.

    ``oracle`` counts the facts that the story takes up, ``words`` the traces of all sentences,
    ``fillers`` the traces of fillers. ``oracle`` is the ceiling.
    """
    prompts = [pair.prompt for pair in pairs]
    mentions = [read_mentions(pair.story) for pair in pairs]
    fillers = [
        [sentence for sentence, kind in zip(pair.sentences, pair.kinds) if not kind]
        for pair in pairs
    ]
    found = {
        "oracle": [[mention.value for mention in of_story] for of_story in mentions],
        "words": [_read_words(pair.sentences) for pair in pairs],
        "fillers": [_read_words(sentences) for sentences in fillers],
    }
    return {reader: rank(values, prompts) for reader, values in found.items()}


def accuracy_with(values: Sequence[int], candidates: int = 10) -> float:
    """Return the expected ranking accuracy of a model that follows only some of the facts.

    Another prompt has the same values of these kinds with the probability p = product of 1 / values
    and then ties; with j ties the credit is 1 / (1 + j), which has the mean (1 - (1 - p)^K) / (K p)
    for K candidates.

    Args:
        values: Number of values of each kind that the model follows.
        candidates: Number K of prompts, the true one included.
    """
    p = 1 / math.prod(values)
    return (1 - (1 - p) ** candidates) / (candidates * p)


def perplexities(pairs: Sequence[Pair], combinations: int) -> dict[str, float]:
    """Return the lowest perplexity that a model can have, over words and ends of stories.

    ``with_prompt`` is of the true distribution of stories given prompts, ``without_prompt`` of the
    true distribution of stories, in which all ``combinations`` of facts are equally likely.
    """
    tokens = sum(len(pair.story.split()) + 1 for pair in pairs)
    nats = -sum(pair.log_prob for pair in pairs)
    prior = len(pairs) * math.log(combinations)
    return {
        "with_prompt": math.exp(nats / tokens),
        "without_prompt": math.exp((nats + prior) / tokens),
    }


def count_mentions(story: str) -> dict[str, Counter]:
    """Count, for each kind, the values in the sentences of a story that take up a fact of it.

    A word that is no trace counts as the value None.
    """
    counts: dict[str, Counter] = {kind: Counter() for kind in KINDS}
    for mention in read_mentions(story):
        counts[mention.kind][mention.value] += 1
    return counts
