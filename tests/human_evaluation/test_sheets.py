"""Sheets: the page loads nothing and tells nothing, the CSV is one line a question."""

import csv
import html
import io
import re

import pytest
from annotation.answers import read_answers
from annotation.questions import make_key, pairing_questions, preference_questions
from annotation.sheets import (
    answer_columns,
    as_cell,
    as_html,
    crowd_template,
    sheet_csv,
    sheet_page,
)
from annotation.stories import Story

HARMFUL = '</p><script>alert("1")</script> & <newline> <b>'


def drawn(system, count):
    return [Story(f"id{i}", f"prompt {i} {HARMFUL}", f"{i} {HARMFUL}") for i in range(count)]


@pytest.fixture
def pairing():
    systems = {
        "secretfusion": drawn("secretfusion", 6),
        "secretknn": drawn("secretknn", 6),
    }
    return pairing_questions(systems, count=6, seed=1)


@pytest.fixture
def preference():
    b = [story._replace(story=f"other {story.story}") for story in drawn("secretknn", 5)]
    return preference_questions({"secretfusion": drawn("x", 5), "secretknn": b}, count=4, seed=1)


@pytest.mark.parametrize("sign", ["=", "+", "-", "@"])
def test_no_cell_is_a_formula(sign):
    """A spreadsheet would run it; a browser shows the sign."""
    text = f"{sign}HYPERLINK(1) said she"
    assert as_cell(text)[0] == "&"
    assert html.unescape(as_cell(text)) == html.unescape(as_html(text)) == text
    assert as_cell("a - b") == "a - b"


@pytest.mark.parametrize("task", ["pairing", "preference"])
def test_sheets_do_not_tell_the_system(task, request):
    questions = request.getfixturevalue(task)
    for sheet in (sheet_csv(task, questions), sheet_page(task, questions)):
        assert "secret" not in sheet
        assert not re.search(r"\bid\d", sheet)
        assert "<script>alert" not in sheet


@pytest.mark.parametrize("task", ["pairing", "preference"])
def test_the_page_loads_nothing_and_has_every_question(task, request):
    questions = request.getfixturevalue(task)
    page = sheet_page(task, questions)
    assert not re.search(r"https?://|src=|<link|@import", page)
    assert re.findall(r'class="question" data-name="(\w+)"', page) == [
        question.name for question in questions
    ]
    choices = 9 if task == "pairing" else 2
    assert page.count('type="radio"') == choices * len(questions)
    column = "story_1,story_2,story_3" if task == "pairing" else "preferred"
    assert f'data-columns="{column}"' in page


@pytest.mark.parametrize("task", ["pairing", "preference"])
def test_the_template_is_filled_from_the_csv(task, request, tmp_path):
    questions = request.getfixturevalue(task)
    template = crowd_template(task)
    rows = list(csv.DictReader(io.StringIO(sheet_csv(task, questions))))
    fields = re.findall(r"\$\{(\w+)\}", template)
    assert sorted(fields) == sorted({*rows[0]} - {"question"})  # each once
    columns = answer_columns(task)
    allowed = ["A", "B", "C"] if task == "pairing" else ["1", "2"]
    for name in columns:
        (choices,) = re.findall(rf'<select name="{name}" required.*?</select>', template, re.DOTALL)
        assert re.findall(r'value="(.*?)"', choices) == ["", *allowed]
    answers = [["WorkerId", "Input.question", *(f"Answer.{x}" for x in columns)]]
    answers += [["w", row["question"], *allowed[: len(columns)]] for row in rows]
    path = tmp_path / "answers.csv"
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(answers)
    key = make_key(task, questions, {"secretfusion": "a", "secretknn": "b"})
    read = read_answers([str(path)], key)
    assert (len(read.answers), read.left_out) == (len(questions), [])
