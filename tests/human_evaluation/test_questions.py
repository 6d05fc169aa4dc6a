"""Questions: what is grouped, what is shown in which order, and that the key knows it."""

import json
from collections import Counter

import pytest
from annotation.questions import (
    LETTERS,
    make_key,
    pairing_questions,
    preference_questions,
    read_key,
)

from fairseq_mm.data.story_file import Story
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


def test_all_orders_occur_and_systems_are_mixed():
    systems = {"x": drawn("x", 300), "y": drawn("y", 300)}
    questions = pairing_questions(systems, count=300, seed=2)
    orders = Counter(tuple(question.answer) for question in questions)
    # 200 questions, 6 orders: 33 expected, standard deviation 5.3
    assert len(orders) == 6
    assert min(orders.values()) > 14
    assert 25 < sum(question.system == "x" for question in questions[:100]) < 75


def test_systems_with_the_same_ids_get_the_same_groups():
    systems = {"x": drawn("x", 20), "y": list(reversed(drawn("y", 20)))}
    questions = pairing_questions(systems, count=18, seed=3)
    groups = {name: {frozenset(q.ids) for q in questions if q.system == name} for name in systems}
    assert groups["x"] == groups["y"]


def test_the_seed_decides_everything():
    systems = {"x": drawn("x", 12)}
    first, again, other = (pairing_questions(systems, count=9, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_group_has_different_prompts_and_stories():
    questions = pairing_questions({"x": drawn("x", 30, prompts=5)}, count=15, seed=1)
    assert all(len(set(question.prompts)) == 3 for question in questions)
    same = [Story(str(i), f"p{i}", "one story") for i in range(9)]
    with pytest.raises(
        UserError, match="x: has too few different prompts and stories for 2 groups of 3; 0 could"
    ):
        pairing_questions({"x": same}, count=6, seed=1)


@pytest.mark.parametrize(
    ("stories", "count", "message"),
    [
        (
            drawn("x", 8),
            9,
            "x: has 8 stories, but --count is 9; give more stories, or --count 6",
        ),
        (drawn("x", 8), 4, "--count: must be a multiple of 3, but is 4"),
        ([Story("5", "", "s")], 3, "x: story '5' has no prompt to be paired with"),
    ],
)
def test_what_cannot_be_paired_is_refused(stories, count, message):
    with pytest.raises(UserError, match=message):
        pairing_questions({"x": stories}, count=count, seed=1)


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


def test_preference_pairs_files_with_other_ids_in_their_order():
    other = [story._replace(id=f"lm{story.id}") for story in drawn("y", 7)]
    questions = preference_questions({"x": drawn("x", 5), "y": other}, count=5, seed=1)
    for question in questions:
        own, others = sorted(question.ids)
        assert others == f"lm{own}"


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


def test_the_key_is_read_as_written(tmp_path):
    questions = pairing_questions({"x": drawn("x", 3)}, count=3, seed=1)
    key = make_key("pairing", questions, {"x": "x.jsonl"})
    (tmp_path / "key.json").write_text(json.dumps(key))
    assert read_key(str(tmp_path)) == key


def test_a_folder_without_a_key_is_named(tmp_path):
    with pytest.raises(UserError, match=r"key.json: no such file; it is written with the sheets"):
        read_key(str(tmp_path))
    for text in ("{}", "[]", "no", '{"task": "pairing", "systems": {"x": ""}, "questions": [1]}'):
        (tmp_path / "key.json").write_text(text)
        with pytest.raises(UserError, match=r"key.json: must be the key that study.py"):
            read_key(str(tmp_path))


@pytest.mark.parametrize(
    ("task", "systems", "entry"),
    [
        ("pairing", ["x"], {"system": "x", "answer": 5}),
        ("pairing", ["x"], {"system": "x", "answer": ["A", "B"]}),
        ("pairing", ["x"], {"answer": ["A", "B", "C"]}),
        ("preference", ["x"], {"answer": ["x", "x"]}),
        ("preference", ["x", "y"], {"answer": ["x", "z"]}),
    ],
)
def test_a_key_that_was_changed_is_refused(tmp_path, task, systems, entry):
    key = {"task": task, "systems": dict.fromkeys(systems, ""), "questions": {"q": entry}}
    (tmp_path / "key.json").write_text(json.dumps(key))
    with pytest.raises(UserError, match=r"key.json: must be the key that study.py"):
        read_key(str(tmp_path))
