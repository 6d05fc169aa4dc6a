"""Answer files: our columns and a crowd platform's, and what does not count, with its place."""

import pytest
from annotation.answers import read_answers

PAIRING = {
    "task": "pairing",
    "systems": {"x": "x.jsonl"},
    "questions": {name: {"system": "x", "answer": ["B", "A", "C"]} for name in ("q1", "q2")},
}
PREFERENCE = {
    "task": "preference",
    "systems": {"x": "", "y": ""},
    "questions": {"q1": {"answer": ["x", "y"]}},
}
HEADER = "judge,question,story_1,story_2,story_3\n"


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="answers.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write_file


def test_answers_of_the_page_are_read(write):
    path = write("\ufeff" + HEADER + 'j1,q1,b,A,C\n"J, 2",q1, A ,B,C\n')
    assert read_answers([path], PAIRING) == (
        [("j1", "q1", ("B", "A", "C")), ("J, 2", "q1", ("A", "B", "C"))],
        [],
    )


def test_answers_of_a_crowd_platform_are_read(write):
    path = write(
        "HITId,WorkerId,Input.question,Input.story_1,Answer.preferred\nh,w7,q1,<b>text,2\n"
    )
    assert read_answers([path], PREFERENCE).answers == [("w7", "q1", ("2",))]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("j1,q9,A,B,C", "q9 is no question of this study"),
        ("j1,,A,B,C", "an empty name is no question of this study"),
        (",q1,A,B,C", "has no annotator"),
        ("j1,q1,A,,C", "story_2 of q1 is missing"),
        ("j1,q1,A,B", "story_3 of q1 is missing"),
        ("j1,q1,A,B,D", "story_3 must be one of A, B, C, but is 'D'"),
        ("j1,q1,A,B,B", "must give each story another prompt, but gives A B B"),
    ],
)
def test_an_answer_that_does_not_count_is_named_with_its_line(write, line, problem):
    path = write(HEADER + f"j1,q2,A,B,C\n{line}\nj3,q1,B,A,C\n")
    answers, left_out = read_answers([path], PAIRING)
    assert left_out == [f"{path}:3: {problem}"]
    assert [answer.annotator for answer in answers] == ["j1", "j3"]


def test_of_two_answers_of_one_annotator_the_first_counts(write):
    first = write(HEADER + "j1,q1,A,B,C\n")
    second = write(HEADER + "j1,q2,A,B,C\nj1,q1,C,B,A\n", "more.csv")
    answers, left_out = read_answers([first, second], PAIRING)
    assert answers[0].values == ("A", "B", "C")
    assert len(answers) == 2
    assert left_out == [f"{second}:3: j1 answered q1 before ({first}:2)"]
