"""Scores of both tasks: accuracy or preference of the systems, and agreement of the annotators."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from annotation.answers import Answer
from annotation.questions import LETTERS
from annotation.statistics import (
    CHANCE_ALL,
    CHANCE_PAIR,
    bootstrap_share,
    fleiss_kappa,
    sign_test,
)

# answers by name of the question
ByQuestion = Mapping[str, Sequence[Answer]]


def score_pairing(
    key: Mapping[str, Any], by_question: ByQuestion, *, samples: int, seed: int
) -> dict[str, Any]:
    """Score the answers of the triple pairing task.

    Args:
        key: Content of the key file, see :func:`annotation.questions.read_key`.
        by_question: Answers by name of the question.
        samples: Number of bootstrap samples.
        seed: Seed of the bootstrap.
    """
    orders = list(permutations(LETTERS))
    systems: dict[str, Any] = {}
    rows = defaultdict(list)  # system -> (all right, pairs right, answers, counts of orders)
    for name, answers in by_question.items():
        right = key["questions"][name]["answer"]
        if not answers:
            continue
        pairs = [sum(map(str.__eq__, answer.values, right)) for answer in answers]
        counts = [sum(answer.values == order for answer in answers) for order in orders]
        entry = (sum(pair == 3 for pair in pairs), sum(pairs), len(answers), counts)
        rows[key["questions"][name]["system"]].append(entry)
    for system in key["systems"]:
        if not rows[system]:
            systems[system] = None
            continue
        whole, pairs, totals, counts = zip(*rows[system])
        options = {"samples": samples, "seed": seed}
        systems[system] = {
            "all_three": bootstrap_share(whole, totals, **options)._asdict(),
            "pairs": bootstrap_share(pairs, [3 * total for total in totals], **options)._asdict(),
            "questions": len(totals),
            "answers": sum(totals),
            "fleiss_kappa": fleiss_kappa(np.array(counts)),
        }
    return {"systems": systems, "chance": {"all_three": CHANCE_ALL, "pairs": CHANCE_PAIR}}


def score_preference(
    key: Mapping[str, Any], by_question: ByQuestion, *, samples: int, seed: int
) -> dict[str, Any]:
    """Score the answers of the preference study, with the arguments of :func:`score_pairing`."""
    first, second = key["systems"]
    hits, totals, left = [], [], 0
    for name, answers in by_question.items():
        if not answers:
            continue
        shown = key["questions"][name]["answer"]
        hits.append(sum(shown[int(answer.values[0]) - 1] == first for answer in answers))
        totals.append(len(answers))
        left += sum(answer.values[0] == "1" for answer in answers)
    counts = np.array([hits, np.subtract(totals, hits)]).T
    return {
        "systems": [first, second],
        "preference": bootstrap_share(hits, totals, samples=samples, seed=seed)._asdict(),
        "sign_test": sign_test(hits, totals)._asdict(),
        "fleiss_kappa": fleiss_kappa(counts),
        "left_side": left / sum(totals),
    }
