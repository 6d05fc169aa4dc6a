"""The sheets of a study: a CSV and its template for crowd platforms, and a page on which one can
answer.

The page is one file that needs no network; answers stay in the browser until they are downloaded
or copied as CSV. Fields of the CSV are HTML, escaped and with ``<br>`` for line breaks: Mechanical
Turk and its like put them into their template as they are, and take no line breaks in a field.
"""

import csv
import io
from collections.abc import Sequence
from html import escape

from fairseq_mm.data.story_text import detokenize_story
from fairseq_mm.report.html_page import render, render_page, section
from fairseq_mm.study.questions import LETTERS, Question

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
    """Columns of an answer after ``annotator`` and ``question``."""
    return [f"story_{i}" for i in (1, 2, 3)] if task == "pairing" else ["preferred"]


def as_html(text: str) -> str:
    """Text as people read it, escaped, with ``<newline>`` tokens as line breaks."""
    lines = detokenize_story(text.split()).split("\n")
    return "<br>".join(escape(line.strip(), quote=False) for line in lines)


def as_cell(text: str) -> str:
    """As HTML that no spreadsheet takes for a formula: ``=``, ``+``, ``-`` and ``@`` at its
    beginning are character references."""
    html = as_html(text)
    return f"&#{ord(html[0])};{html[1:]}" if html[:1] in set("=+-@") else html


def question_columns(task: str) -> tuple[list[str], list[str]]:
    """Columns of a question's prompts and of its stories."""
    prompts = [f"prompt_{letter.lower()}" for letter in LETTERS] if task == "pairing" else []
    return prompts, [f"story_{i}" for i in range(1, 4 if task == "pairing" else 3)]


def sheet_csv(task: str, questions: Sequence[Question]) -> str:
    """One question a line, under ``question``, ``prompt_a`` to ``prompt_c``, ``story_1`` and on."""
    text = io.StringIO()
    prompts, stories = question_columns(task)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["question", *prompts, *stories])
    for question in questions:
        shown = [*question.prompts, *question.stories]
        writer.writerow([question.name, *map(as_cell, shown)])
    return text.getvalue()


def sheet_page(task: str, questions: Sequence[Question]) -> str:
    """The page with all questions."""
    title, instruction = TASK_TEXT[task]
    sheet = section(
        "",
        "sheet.html",
        "sheet.js",
        instruction=instruction,
        columns=answer_columns(task),
        questions=questions,
        letters=LETTERS,
        as_html=as_html,
    )
    return render_page(title, [sheet])


def crowd_template(task: str) -> str:
    """A template of Mechanical Turk's: one question, whose fields are the columns of the CSV.

    ``${column}`` stands for a field of the question's line, which is HTML already. The answers come
    back under ``Answer.`` and the names of :func:`answer_columns`, beside ``Input.question``.
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
        "crowd.html",
        title=title,
        instruction=instruction.replace("Each question shows", "Below are"),
        prompts=[{"letter": x, "field": f"${{{name}}}"} for x, name in zip(LETTERS, prompts)],
        stories=[f"${{{name}}}" for name in stories],
        choices=[
            {"name": name, "label": label, "options": values}
            for name, label in zip(answer_columns(task), labels)
        ],
    )
