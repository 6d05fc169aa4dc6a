"""Annotators' answers: CSV files of the page, or of a crowd platform with its own column names."""

import csv
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

from fairseq_mm.errors import UserError
from fairseq_mm.study.questions import LETTERS
from fairseq_mm.study.sheets import answer_columns


class Answer(NamedTuple):
    """One annotator's answer to one question.

    Attributes:
        annotator: name.
        question: name.
        values: pairing: the letter given to each story; preference: ``1`` or ``2``.
    """

    annotator: str
    question: str
    values: tuple[str, ...]


class Answers(NamedTuple):
    """What was read.

    Attributes:
        answers: those that count, in the order read.
        left_out: ``file:line: why``, those that do not.
    """

    answers: list[Answer]
    left_out: list[str]


def read_answers(paths: Iterable[str], key: dict[str, Any]) -> Answers:
    """Reads answers; of several of one annotator to one question the first counts.

    Args:
        paths: CSV files with ``annotator`` (or ``judge``, or ``WorkerId``), ``question`` (or
            ``Input.question``) and ``story_1`` to ``story_3`` or ``preferred`` (or
            ``Answer.story_1`` and so on).
        key: from :func:`fairseq_mm.study.questions.read_key`.

    Raises:
        UserError: if a file cannot be read or lacks a column, or no answer counts.
    """
    columns = answer_columns(key["task"])
    found: dict[tuple[str, str], Answer] = {}
    where: dict[tuple[str, str], str] = {}
    left_out: list[str] = []
    for path in paths:
        for place, row in _rows(path, columns):
            values = tuple(row[column].upper() for column in columns)
            problem = _problem(row, columns, values, key)
            pair = (row["annotator"], row["question"])
            if problem is None and pair in found:
                problem = f"{row['annotator']} answered {row['question']} before ({where[pair]})"
            if problem is not None:
                left_out.append(f"{place}: {problem}")
                continue
            found[pair] = Answer(*pair, values)
            where[pair] = place
    if not found:
        raise UserError(f"no answer counts; {left_out[0] if left_out else 'the files have none'}.")
    return Answers(list(found.values()), left_out)


def _problem(
    row: dict[str, str], columns: list[str], values: tuple[str, ...], key: dict[str, Any]
) -> Optional[str]:
    """Why an answer does not count, or None."""
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
    """``path:line`` and the fields that are needed, by our names."""
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
        # a platform repeats its input, so a `story_1` beside an `Answer.story_1` is the story
        theirs = next((name for name in (*others, ours) if name in known), None)
        if theirs is None:
            raise UserError(
                f"{path}:1: must have the columns {', '.join(aliases)} (or {', '.join(others)} for "
                f"{ours}), but has {', '.join(known) or 'none'}."
            )
        names[ours] = known[theirs]
    return names
