"""Writes sheets for annotators: a CSV file with a template for crowd platforms, and a page.

The page is one file that needs no network; answers stay in the browser until they are downloaded
or copied as CSV. Fields of the CSV file are escaped HTML with ``<br>`` for line breaks, because
Mechanical Turk inserts them unchanged into the template and allows no line breaks in a field.
"""

import csv
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

from annotation.questions import LETTERS, Question
from fairseq_mm.data.story_text import detokenize_story
from fairseq_mm.report.html_page import render, render_page, section

_TEMPLATES = Path(__file__).parents[1] / "templates"
TASK_TEXT = {
    "pairing": (
        "Which story was written for which prompt?",
        "Each question shows three prompts and three stories. Give every story its prompt; each "
        "prompt belongs to one story.",
    ),
    "preference": (
        "Which story do you prefer to read?",
        "Each question shows two stories. Choose the one that you prefer reading. They may break "
        "off in the middle.",
    ),
}


def answer_columns(task: str) -> list[str]:
    """Return the columns of an answer after ``annotator`` and ``question``."""
    return [f"story_{i}" for i in (1, 2, 3)] if task == "pairing" else ["preferred"]


def as_html(text: str) -> str:
    """Return detokenized text as escaped HTML, with ``<newline>`` tokens as line breaks."""
    lines = detokenize_story(text.split()).split("\n")
    return "<br>".join(escape(line.strip(), quote=False) for line in lines)


def as_cell(text: str) -> str:
    """Return text as HTML that no spreadsheet takes for a formula.

    ``=``, ``+``, ``-`` and ``@`` at the beginning become character references.
    """
    html = as_html(text)
    return f"&#{ord(html[0])};{html[1:]}" if html[:1] in set("=+-@") else html


def question_columns(task: str) -> tuple[list[str], list[str]]:
    """Return two lists: the columns of prompts and the columns of stories."""
    prompts = [f"prompt_{letter.lower()}" for letter in LETTERS] if task == "pairing" else []
    return prompts, [f"story_{i}" for i in range(1, 4 if task == "pairing" else 3)]


def sheet_csv(task: str, questions: Sequence[Question]) -> str:
    """Return the CSV file: one question a line, with its name, prompts and stories."""
    text = io.StringIO()
    prompts, stories = question_columns(task)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["question", *prompts, *stories])
    for question in questions:
        shown = [*question.prompts, *question.stories]
        writer.writerow([question.name, *map(as_cell, shown)])
    return text.getvalue()


def sheet_page(task: str, questions: Sequence[Question]) -> str:
    """Return the page with all questions."""
    title, instruction = TASK_TEXT[task]
    sheet = section(
        "",
        str(_TEMPLATES / "sheet.html"),
        str(_TEMPLATES / "sheet.js"),
        instruction=instruction,
        columns=answer_columns(task),
        questions=questions,
        letters=LETTERS,
        as_html=as_html,
    )
    return render_page(title, [sheet])


def crowd_template(task: str) -> str:
    """Return a Mechanical Turk template of one question, with the columns of the CSV as fields.

    ``${column}`` is replaced by a field of the question's line, which is HTML already. Mechanical
    Turk returns answers in columns ``Answer.NAME``, with NAME from :func:`answer_columns`, and the
    name of the question in ``Input.question``.
    """
    title, instruction = TASK_TEXT[task]
    prompts, stories = question_columns(task)
    if task == "pairing":
        values = [(letter, letter) for letter in LETTERS]
        labels = [f"Story {i + 1} belongs to prompt" for i in range(len(stories))]
    else:
        values = [(str(i + 1), f"Story {i + 1}") for i in range(len(stories))]
        labels = ["I prefer"]
    return render(
        str(_TEMPLATES / "crowd.html"),
        title=title,
        instruction=instruction.replace("Each question shows", "Below are"),
        prompts=[{"letter": x, "field": f"${{{name}}}"} for x, name in zip(LETTERS, prompts)],
        stories=[f"${{{name}}}" for name in stories],
        choices=[
            {"name": name, "label": label, "options": values}
            for name, label in zip(answer_columns(task), labels)
        ],
    )
