"""Questions of Fan et al. 2018, section 5.5, and the key with the system of each story.

Triple pairing: three stories of one system and their three prompts are shuffled; which belong
together? Preference: two stories, one of each system, are shown on random sides; which one is
preferred? Names of questions are meaningless and their order is random, so that annotators can
recognise a system only by its stories.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from annotation.stories import Story
from fairseq_mm.data.input_files import parse_json
from fairseq_mm.errors import UserError

GROUP = 3
LETTERS = "ABC"  # names of the prompts
KEY_FILE = "key.json"
# without vowels and similar characters, so that names are neither words nor confused
_NAME_LETTERS = "bcdfghjklmnpqrstvwxz23456789"


class Question(NamedTuple):
    """Question with its solution, which annotators do not see.

    Attributes:
        name: Meaningless name.
        prompts: Prompts in the order shown; empty in the preference study.
        stories: Stories in the order shown.
        system: System of the stories; empty in the preference study.
        answer: For each story the letter of its prompt (pairing) or its system (preference).
        ids: Ids of the stories.
    """

    name: str
    prompts: list[str]
    stories: list[str]
    system: str
    answer: list[str]
    ids: list[str]


def pairing_questions(
    systems: dict[str, Sequence[Story]], *, count: int, seed: int
) -> list[Question]:
    """Make the questions of the triple pairing task.

    Systems with the same ids get the same groups of prompts, so that their questions are equally
    hard. A group has three different prompts and stories.

    Args:
        systems: Stories with prompts, by name of the system.
        count: Number of stories of each system, a multiple of three; chosen at random.
        seed: Seed of all random choices.

    Raises:
        UserError: If a system has too few stories, a story without a prompt, or too few different
            prompts and stories for its groups.
    """
    if count < GROUP or count % GROUP:
        raise UserError(f"--count: must be a multiple of {GROUP}, but is {count}.")
    questions: list[Question] = []
    names = _names(count // GROUP * len(systems), seed)
    generator = np.random.default_rng([seed, 2])  # for the orders shown
    for system, stories in systems.items():
        lacking = next((story.id for story in stories if not story.prompt), None)
        if lacking is not None:
            raise UserError(f"{system}: story {lacking!r} has no prompt to be paired with.")
        if len(stories) < count:
            raise UserError(
                f"{system}: has {len(stories)} stories, but --count is {count}; give more "
                f"stories, or --count {len(stories) // GROUP * GROUP}."
            )
        ordered = sorted(stories, key=lambda story: story.id)
        order = np.random.default_rng([seed, 0]).permutation(len(ordered))
        for group in _groups(system, [ordered[i] for i in order], count):
            of_stories = generator.permutation(GROUP)
            of_prompts = generator.permutation(GROUP)
            answer = [LETTERS[int(np.flatnonzero(of_prompts == i)[0])] for i in of_stories]
            questions.append(
                Question(
                    name=names[len(questions)],
                    prompts=[group[i].prompt for i in of_prompts],
                    stories=[group[i].story for i in of_stories],
                    system=system,
                    answer=answer,
                    ids=[group[i].id for i in of_stories],
                )
            )
    return [questions[i] for i in generator.permutation(len(questions))]


def _groups(system: str, stories: list[Story], count: int) -> list[list[Story]]:
    """Group stories in their order by three, with different prompts and texts in a group."""
    remaining = list(stories)
    groups: list[list[Story]] = []
    while len(groups) < count // GROUP:
        group: list[Story] = []
        for story in remaining:
            # nobody could tell which of two equal stories belongs to which prompt
            if all(a.prompt != story.prompt and a.story != story.story for a in group):
                group.append(story)
            if len(group) == GROUP:
                break
        if len(group) < GROUP:
            raise UserError(
                f"{system}: has too few different prompts and stories for {count // GROUP} groups "
                f"of {GROUP}; {len(groups)} could be formed, with --count {len(groups) * GROUP}."
            )
        remaining = [story for story in remaining if story not in group]
        groups.append(group)
    return groups


def preference_questions(
    systems: dict[str, Sequence[Story]], *, count: int, seed: int
) -> list[Question]:
    """Make the questions of the preference study.

    If both systems have the same ids, stories with equal ids are compared; otherwise stories are
    paired in the order of the files. Each system is shown first in half of the questions.

    Args:
        systems: Stories of two systems, by name.
        count: Number of pairs, chosen at random.
        seed: Seed of all random choices.

    Raises:
        UserError: If there are too few pairs of different stories.
    """
    (first, a), (second, b) = systems.items()
    if count < 1:
        raise UserError(f"--count: must be 1 or more, but is {count}.")
    if {story.id for story in a} == {story.id for story in b}:
        by_id = {story.id: story for story in b}
        pairs = [(story, by_id[story.id]) for story in a]
    else:
        pairs = list(zip(a, b))
    pairs = [pair for pair in pairs if pair[0].story != pair[1].story]
    if len(pairs) < count:
        raise UserError(
            f"{first} and {second}: have {len(pairs)} pairs of different stories, but --count is "
            f"{count}."
        )
    generator = np.random.default_rng([seed, 0])
    names = _names(count, seed)
    chosen = generator.permutation(len(pairs))[:count]
    swapped = generator.permutation(np.arange(count) % 2)
    questions = []
    for name, i, swap in zip(names, chosen, swapped):
        shown = list(zip(pairs[i], (first, second)))
        if swap:
            shown.reverse()
        questions.append(
            Question(
                name=name,
                prompts=[],
                stories=[story.story for story, _ in shown],
                system="",
                answer=[system for _, system in shown],
                ids=[story.id for story, _ in shown],
            )
        )
    return questions


def _names(count: int, seed: int) -> list[str]:
    """Return distinct meaningless names."""
    generator = np.random.default_rng([seed, 1])
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(_NAME_LETTERS[i] for i in generator.integers(len(_NAME_LETTERS), size=6))] = (
            None
        )
    return list(names)


def make_key(task: str, questions: Sequence[Question], systems: dict[str, str]) -> dict[str, Any]:
    """Return the content of the key file.

    Args:
        task: ``pairing`` or ``preference``.
        questions: Questions in the order shown.
        systems: File of each system, by name.
    """
    entries = {
        question.name: {"system": question.system, "answer": question.answer, "ids": question.ids}
        for question in questions
    }
    if task == "preference":
        for entry in entries.values():
            del entry["system"]
    return {"task": task, "systems": systems, "questions": entries}


def read_key(folder: str) -> dict[str, Any]:
    """Read and check the key in a folder of sheets.

    Raises:
        UserError: If the file is missing or is not a key.
    """
    path = Path(folder, KEY_FILE)
    try:
        key = parse_json(path.read_text(encoding="utf-8"))
        known = key["task"] in ("pairing", "preference") and len(key["questions"]) > 0
        names = set(key["systems"])
        for entry in key["questions"].values():
            if key["task"] == "pairing":
                known &= entry["system"] in names and sorted(entry["answer"]) == list(LETTERS)
            else:
                known &= len(names) == 2 and set(entry["answer"]) == names
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; it is written with the sheets.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        known = False
    if not known:
        raise UserError(f"{path}: must be the key that study.py wrote, but is not.")
    return key
