"""Reads answers of annotators: CSV files from the page or from a crowd platform."""

import csv
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

from annotation.questions import LETTERS
from annotation.sheets import answer_columns
from fairseq_mm.errors import UserError


class Answer(NamedTuple):
    """Answer of one annotator to one question.

    Attributes:
        annotator: Name of the annotator.
        question: Name of the question.
        values: Letter chosen for each story (pairing), or ``1`` or ``2`` (preference).
    """

    annotator: str
    question: str
    values: tuple[str, ...]


class Answers(NamedTuple):
    """Valid answers, and reasons for the others.

    Attributes:
        answers: Valid answers in the order of the files.
        left_out: ``file:line: reason`` for each other answer.
    """

    answers: list[Answer]
    left_out: list[str]


def read_answers(paths: Iterable[str], key: dict[str, Any]) -> Answers:
    """Read answers. If an annotator answered a question twice, the first answer counts.

    Args:
        paths: CSV files with ``annotator`` (or ``judge``, or ``WorkerId``), ``question`` (or
            ``Input.question``) and ``story_1`` to ``story_3`` or ``preferred`` (or
            ``Answer.story_1`` and so on).
        key: Content of the key file, see :func:`annotation.questions.read_key`.

    Raises:
        UserError: If a file cannot be read or lacks a column, or no answer is valid.
    """
    columns = answer_columns(key["task"])
    answers: dict[tuple[str, str], Answer] = {}  # by annotator and question
    places: dict[tuple[str, str], str] = {}
    left_out: list[str] = []
    for path in paths:
        for place, row in _rows(path, columns):
            values = tuple(row[column].upper() for column in columns)
            problem = _problem(row, columns, values, key)
            pair = (row["annotator"], row["question"])
            if problem is None and pair in answers:
                problem = f"{row['annotator']} answered {row['question']} before ({places[pair]})"
            if problem is not None:
                left_out.append(f"{place}: {problem}")
                continue
            answers[pair] = Answer(*pair, values)
            places[pair] = place
    if not answers:
        raise UserError(f"no answer counts; {left_out[0] if left_out else 'the files have none'}.")
    return Answers(list(answers.values()), left_out)


def _problem(
    row: dict[str, str], columns: list[str], values: tuple[str, ...], key: dict[str, Any]
) -> Optional[str]:
    """Return why an answer is not valid, or None."""
    if not row["annotator"]:
        return "has no annotator"
    if row["question"] not in key["questions"]:
        return f"{row['question'] or 'an empty name'} is no question of this study"
    allowed = list(LETTERS) if key["task"] == "pairing" else ["1", "2"]
    for column, value in zip(columns, values):
        if not value:
            return f"{column} of {row['question']} is missing"
        if value not in allowed:
            return f"{column} must be one of {', '.join(allowed)}, but is {row[column]!r}"
    if len(set(values)) < len(values):
        return f"must give each story another prompt, but gives {' '.join(values)}"
    return None


def _rows(path: str, columns: list[str]) -> Iterable[tuple[str, dict[str, str]]]:
    """Yield ``path:line`` and the required fields of each answer."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            names = _column_names(path, reader.fieldnames or [], columns)
            for row in reader:
                fields = {ours: (row[theirs] or "").strip() for ours, theirs in names.items()}
                yield f"{path}:{reader.line_num}", fields
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be UTF-8 text, but is not ({error}).") from None
    except csv.Error as error:
        raise UserError(f"{path}: must be CSV, but is not ({error}).") from None


def _column_names(path: str, header: Iterable[str], columns: list[str]) -> dict[str, str]:
    known = {name.strip(): name for name in header}
    aliases = {"annotator": ["WorkerId", "judge"], "question": ["Input.question"]}
    aliases.update({column: [f"Answer.{column}"] for column in columns})
    names = {}
    for ours, others in aliases.items():
        # platforms repeat their input: `story_1` is the story's text if there is `Answer.story_1`
        theirs = next((name for name in (*others, ours) if name in known), None)
        if theirs is None:
            raise UserError(
                f"{path}:1: must have the columns {', '.join(aliases)} (or {', '.join(others)} for "
                f"{ours}), but has {', '.join(known) or 'none'}."
            )
        names[ours] = known[theirs]
    return names
