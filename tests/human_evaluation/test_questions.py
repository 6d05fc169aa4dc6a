"""Questions: what is grouped, what is shown in which order, and that the key knows it."""

from collections import Counter

import pytest
from annotation.questions import (
    LETTERS,
    pairing_questions,
    preference_questions,
)
from annotation.stories import Story

from fairseq_mm.errors import UserError


def drawn(system, count, prompts=None):
    """Story i says whose it is."""
    return [
        Story(str(i), f"p{i % (prompts or count)}", f"{system} tells {i}") for i in range(count)
    ]


def test_each_question_has_three_stories_of_one_system_and_their_prompts():
    systems = {"x": drawn("x", 31), "y": drawn("y", 31)}
    questions = pairing_questions(systems, count=27, seed=1)
    assert len(questions) == 18
    assert len({question.name for question in questions}) == 18
    seen = Counter()
    for question in questions:
        for story, letter, key in zip(question.stories, question.answer, question.ids):
            assert story == f"{question.system} tells {key}"
            assert question.prompts[LETTERS.index(letter)] == f"p{key}"
            seen[question.system, key] += 1
        assert sorted(question.answer) == list(LETTERS)
    assert set(seen.values()) == {1}
    assert Counter(system for system, _ in seen) == {"x": 27, "y": 27}


def test_systems_with_the_same_ids_get_the_same_groups():
    systems = {"x": drawn("x", 20), "y": list(reversed(drawn("y", 20)))}
    questions = pairing_questions(systems, count=18, seed=3)
    groups = {name: {frozenset(q.ids) for q in questions if q.system == name} for name in systems}
    assert groups["x"] == groups["y"]


def test_a_group_has_different_prompts_and_stories():
    questions = pairing_questions({"x": drawn("x", 30, prompts=5)}, count=15, seed=1)
    assert all(len(set(question.prompts)) == 3 for question in questions)
    same = [Story(str(i), f"p{i}", "one story") for i in range(9)]
    with pytest.raises(
        UserError, match="x: has too few different prompts and stories for 2 groups of 3; 0 could"
    ):
        pairing_questions({"x": same}, count=6, seed=1)


def test_preference_shows_the_same_ids_and_each_system_first_in_half():
    systems = {"x": drawn("x", 12), "y": list(reversed(drawn("y", 12)))}
    questions = preference_questions(systems, count=10, seed=4)
    for question in questions:
        assert question.ids[0] == question.ids[1]
        assert sorted(question.answer) == ["x", "y"]
        shown = [f"{system} tells {key}" for system, key in zip(question.answer, question.ids)]
        assert question.stories == shown
    assert sum(question.answer[0] == "x" for question in questions) == 5
    assert len({question.ids[0] for question in questions}) == 10


def test_preference_leaves_out_equal_stories():
    a, b = drawn("x", 6), drawn("y", 6)
    b[2] = a[2]
    questions = preference_questions({"x": a, "y": b}, count=5, seed=1)
    assert all("2" not in question.ids for question in questions)
    with pytest.raises(
        UserError, match="x and y: have 5 pairs of different stories, but --count is 6"
    ):
        preference_questions({"x": a, "y": b}, count=6, seed=1)
    with pytest.raises(UserError, match="--count: must be 1 or more, but is 0"):
        preference_questions({"x": a, "y": b}, count=0, seed=1)
